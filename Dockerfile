# Two images: `--target demo`, a replica for docker-compose.yml, and `--target gateway`.
#
# Each build copies the repository and runs Cargo, so a new crate, example or binary needs no change
# here. The classic builder also builds every stage above its target, so the demo precedes the gateway.

FROM rust:1-slim-bookworm AS source
WORKDIR /src
ENV CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=false
COPY . .

FROM source AS build-demo
RUN cargo build --release --locked --package demo

FROM debian:bookworm-slim AS demo
COPY --from=build-demo /src/target/release/demo /usr/local/bin/demo
# An unprivileged user without an account.
USER 10001:10001
ENV TOLLGATE_LISTEN=0.0.0.0:3000
EXPOSE 3000
# bash opens the connection, so the image needs no curl.
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/3000 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.[01] 200' <&3"]
CMD ["demo"]

FROM source AS build-gateway
RUN cargo build --release --locked --package tollgate-cli --bin tollgate

FROM debian:bookworm-slim AS gateway
# Root certificates for targets and key sets that the gateway reaches over TLS.
COPY --from=build-gateway /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-gateway /src/target/release/tollgate /usr/local/bin/tollgate
USER 10001:10001
EXPOSE 8080
# Port 8081 is the admin listener's default. It listens on loopback, which this check can reach.
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/8081 && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.[01] 200' <&3"]
CMD ["tollgate", "serve", "--config", "/etc/tollgate/limits.yaml"]
