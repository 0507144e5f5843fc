# The replica of docker-compose.yml (`--target demo`), and the gateway (`--target gateway`). For any
# builder, the classic one too, which builds everything above its target; so the demo comes first.
#
#   manifests              what decides on the dependencies, and nothing else
#   build, build-gateway   dependencies first, in a layer that lasts until a manifest changes
#   demo, gateway          the program alone

FROM rust:1-slim-bookworm AS manifests
WORKDIR /src
COPY . .
# Cargo wants every member of the workspace to have a root, so each stays as an empty one.
RUN mkdir /manifests \
 && find . \( -name Cargo.toml -o -name Cargo.lock \) -exec cp --parents {} /manifests ';' \
 && find . \( -path '*/src/lib.rs' -o -path '*/src/main.rs' -o -path '*/src/bin/*.rs' -o -name build.rs \) \
      -exec cp --parents {} /manifests ';' \
 && find /manifests -name '*.rs' | while read -r root; do echo 'fn main() {}' >"$root"; done

FROM rust:1-slim-bookworm AS build
WORKDIR /src
ENV CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true
COPY --from=manifests /manifests .
RUN cargo build --release --locked --package demo
COPY . .
# The files may be older than what was built of their empty selves. What was built stays as it
# is: build scripts have written sources as well.
RUN find . -path ./target -prune -o -name '*.rs' -exec touch {} + \
 && cargo build --release --locked --package demo

FROM debian:bookworm-slim AS demo
COPY --from=build /src/target/release/demo /usr/local/bin/demo
# Nobody in particular, and not root.
USER 10001:10001
ENV TOLLGATE_LISTEN=0.0.0.0:3000
EXPOSE 3000
# Asks over a connection of bash, so that the image needs no further program.
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/3000 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.[01] 200' <&3"]
CMD ["demo"]

FROM rust:1-slim-bookworm AS build-gateway
WORKDIR /src
ENV CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true
COPY --from=manifests /manifests .
RUN cargo build --release --locked --package tollgate-gateway --bin tollgate
COPY . .
# As above.
RUN find . -path ./target -prune -o -name '*.rs' -exec touch {} + \
 && cargo build --release --locked --package tollgate-gateway --bin tollgate

FROM debian:bookworm-slim AS gateway
# Whom to trust when a target or a key set is reached over TLS.
COPY --from=build-gateway /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-gateway /src/target/release/tollgate /usr/local/bin/tollgate
USER 10001:10001
EXPOSE 8080
# The admin address, as the file has it by default; on loopback it is seen from in here alone.
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/8081 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.[01] 200' <&3"]
CMD ["tollgate", "serve", "--config", "/etc/tollgate/limits.yaml"]
