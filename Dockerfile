# Two images: `--target demo`, a replica for docker-compose.yml, and `--target gateway`.
#
# Each build copies the repository and runs Cargo, so a new crate, example or binary needs no change
# here. The classic builder also builds every stage above its target, so the demo precedes the gateway.

FROM rust:1-slim-bookworm AS source
# Programs are static, so their images contain nothing else. `musl` makes programs that run on every
# Linux, and downloads its standard library. `gnu` needs no download.
ARG LIBC=gnu
RUN [ "$LIBC" = gnu ] || { rustup target add "$(uname -m)-unknown-linux-$LIBC" && \
    apt-get update && apt-get install --yes --no-install-recommends musl-tools; }
WORKDIR /src
ENV LIBC=$LIBC CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=false RUSTFLAGS="-C target-feature=+crt-static"
COPY . .

# With a target, Cargo builds procedural macros without RUSTFLAGS. They cannot be static.
FROM source AS build-demo
RUN CARGO_BUILD_TARGET=$(uname -m)-unknown-linux-$LIBC cargo build --release --locked --package demo

FROM scratch AS demo
COPY --from=build-demo /src/target/*/release/demo /usr/local/bin/demo
# An unprivileged user without an account.
USER 10001:10001
ENV TOLLGATE_LISTEN=0.0.0.0:3000
EXPOSE 3000
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["demo", "--healthcheck"]
CMD ["demo"]

FROM source AS build-gateway
RUN CARGO_BUILD_TARGET=$(uname -m)-unknown-linux-$LIBC cargo build --release --locked --package tollgate-cli --bin tollgate

FROM scratch AS gateway
# Root certificates for targets and key sets that the gateway reaches over TLS.
COPY --from=build-gateway /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build-gateway /src/target/*/release/tollgate /usr/local/bin/tollgate
USER 10001:10001
EXPOSE 8080
# The admin listener's default is port 8081 on loopback, which this check can reach.
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s --retries=3 CMD ["tollgate", "healthcheck"]
CMD ["tollgate", "serve", "--config", "/etc/tollgate/limits.yaml"]
