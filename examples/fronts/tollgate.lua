-- `http-request lua.tollgate` sends each request's headers to Tollgate. It needs no other library.
local url = "http://127.0.0.1:8082/forward-auth"

-- These headers describe the connection or the body, which is not sent.
local dropped = {
    "connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade",
}

core.register_action("tollgate", { "http-req" }, function(txn)
    local headers = txn.http:req_get_headers()
    local count = 0
    for _, lines in pairs(headers) do
        for _ in pairs(lines) do
            count = count + 1
        end
    end
    -- With more than about 100 headers in its check, HAProxy 2.6 would crash.
    if count > 90 then
        txn:done(txn:reply({ status = 431 }))
    end
    for _, name in ipairs(dropped) do
        headers[name] = nil
    end
    -- Set, not appended, because a client can send these headers too.
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-uri"] = { txn.f:pathq() }
    headers["x-forwarded-host"] = { txn.f:req_hdr("host") or "" }
    headers["x-forwarded-for"] = { txn.f:src() }

    local answer = core.httpclient():get({ url = url, headers = headers })
    local function header(name)
        return answer.headers and answer.headers[name] and answer.headers[name][0]
    end
    if answer.status == 200 then
        txn:set_var("txn.tollgate_limit", header("ratelimit"))
        txn:set_var("txn.tollgate_policy", header("ratelimit-policy"))
        return
    end
    -- If Tollgate does not respond, the request is rejected. Return here instead to fail open.
    local status = answer.status ~= 0 and answer.status or 503
    local reply = txn:reply({ status = status, body = answer.body })
    for _, name in ipairs({ "content-type", "retry-after", "ratelimit", "ratelimit-policy" }) do
        if header(name) then
            reply:add_header(name, header(name))
        end
    end
    txn:done(reply)
end)
