# The server as a static binary in an empty image: no shell, no package manager, uid 65532.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=dev
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X github.com/kubewrite/kube-write-mcp/pkg/app.Version=$VERSION" \
    -o /root-fs/kube-write-mcp ./cmd/kube-write-mcp
# What a process wants to find: certificates, its own name, a folder for the journal.
RUN mkdir -p /root-fs/etc/ssl/certs /root-fs/state && \
    cp /etc/ssl/certs/ca-certificates.crt /root-fs/etc/ssl/certs/ && \
    echo 'nonroot:x:65532:65532:nonroot:/state:/nologin' >/root-fs/etc/passwd && \
    cp LICENSE /root-fs/LICENSE && \
    chown 65532:65532 /root-fs/state

FROM scratch
COPY --from=build /root-fs/ /
ENV HOME=/state XDG_STATE_HOME=/state
USER 65532:65532
STOPSIGNAL SIGTERM
ENTRYPOINT ["/kube-write-mcp"]
