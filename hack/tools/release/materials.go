package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// buildInfo is what the Go linker wrote into a program.
func buildInfo(p program) (*debug.BuildInfo, error) {
	info, err := buildinfo.Read(bytes.NewReader(p.bytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.platform, err)
	}
	return info, nil
}

// setting is one of the build, or "".
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// materials is the bill of materials, in CycloneDX: the modules, and the standard library,
// that are linked into any of the programs, and what the image adds. It is read from the
// programs themselves, not from go.mod, which lists what only tests use as well.
func (r release) materials(built []program) error {
	components := map[string]cyclonedx.Component{}
	add := func(path, version string) {
		purl := "pkg:golang/" + path + "@" + version
		components[purl] = cyclonedx.Component{
			BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version,
			PackageURL: purl, Scope: cyclonedx.ScopeRequired,
		}
	}
	var programs []cyclonedx.Component
	var revision string
	for _, p := range built {
		info, err := buildInfo(p)
		if err != nil {
			return err
		}
		revision = setting(info, "vcs.revision")
		add("std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, m := range info.Deps {
			add(m.Path, m.Version)
		}
		programs = append(programs, cyclonedx.Component{
			Type: cyclonedx.ComponentTypeFile, Name: p.name, Description: p.String(),
			Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(p.bytes))}},
		})
	}
	if own, ok := debug.ReadBuildInfo(); ok { // the image's certificates
		for _, m := range own.Deps {
			if m.Path == "golang.org/x/crypto/x509roots/fallback" {
				add(m.Path, m.Version)
			}
		}
	}
	self := "pkg:golang/github.com/kubewrite/kube-write-mcp@v" + r.version
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Component: &cyclonedx.Component{
			BOMRef: self, Type: cyclonedx.ComponentTypeApplication, Name: product, Version: "v" + r.version, PackageURL: self,
			Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
			Components: &programs,
		},
		Properties: &[]cyclonedx.Property{{Name: "vcs.revision", Value: revision}},
	}
	refs := sorted(components)
	list := make([]cyclonedx.Component, 0, len(refs))
	for _, ref := range refs {
		list = append(list, components[ref])
	}
	bom.Components = &list
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: self, Dependencies: &refs}}
	var b bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("%s_%s.cdx.json", product, r.version), b.Bytes())
}
