package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// nonroot is the user, and the group, that the image runs as.
const nonroot = 65532

// epoch is when everything was made: what is built twice is the same.
var epoch = v1.Time{Time: time.Unix(0, 0).UTC()}

// image is an OCI archive with an image for each Linux: what the last stage of the
// Dockerfile has, but for the certificates, which are those of a pinned module instead of
// those that the base image of the day brings.
func (r release) image(built []program) error {
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var found bool
	for _, p := range built {
		if p.os != "linux" {
			continue
		}
		img, err := r.imageOf(p)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
		found = true
	}
	if !found {
		return nil
	}
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	err = to.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": product + ":" + r.version}))
	if err != nil {
		return err
	}
	files, err := filesOf(dir)
	if err != nil {
		return err
	}
	raw, err := tarred(files)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("%s_%s_oci.tar", product, r.version), raw)
}

func (r release) imageOf(p program) (v1.Image, error) {
	info, err := buildInfo(p)
	if err != nil {
		return nil, err
	}
	roots, err := certificates()
	if err != nil {
		return nil, err
	}
	raw, err := tarred([]file{
		{"LICENSE", 0o644, 0, r.license},
		{"etc/", 0o755, 0, nil},
		{"etc/passwd", 0o644, 0, fmt.Appendf(nil, "nonroot:x:%d:%[1]d:nonroot:/state:/nologin\n", nonroot)},
		{"etc/ssl/", 0o755, 0, nil},
		{"etc/ssl/certs/", 0o755, 0, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, roots},
		{p.name, 0o755, 0, p.bytes},
		{"state/", 0o755, nonroot, nil},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: epoch, CreatedBy: "hack/release.sh"}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created, config.OS, config.Architecture = epoch, p.os, p.arch
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", nonroot),
		Env:        []string{"HOME=/state", "XDG_STATE_HOME=/state"},
		Entrypoint: []string{"/" + p.name},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":       product,
			"org.opencontainers.image.description": "MCP server for safe Kubernetes writes, two calls apart",
			"org.opencontainers.image.version":     r.version,
			"org.opencontainers.image.revision":    setting(info, "vcs.revision"),
			"org.opencontainers.image.source":      source,
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// certificates are the roots of Mozilla's list that may vouch for anything, as PEM. Those
// that are bound by a condition are left out: a file of certificates cannot say it.
func certificates() ([]byte, error) {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// filesOf lists the files of a folder, sorted.
func filesOf(dir string) (out []file, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out = append(out, file{filepath.ToSlash(name), 0o644, 0, raw})
		return err
	})
	slices.SortFunc(out, func(a, b file) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return out, err
}
