package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestVersionIdentifiesSources(t *testing.T) {
	checkout := &debug.BuildInfo{
		Main: debug.Module{Version: "v0.0.0-20260102030405-0123456789ab+dirty"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
		},
	}
	rest := ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH
	for name, test := range map[string]struct {
		commit string
		info   *debug.BuildInfo
		want   string
	}{
		"a release": {"fedcba9876543210", checkout, "symmem v1.2.3 (fedcba987654)"},
		"a release of modified sources": {
			"fedcba9876543210-modified", checkout, "symmem v1.2.3 (fedcba987654, modified)",
		},
		"a checkout": {
			"", checkout,
			"symmem v0.0.0-20260102030405-0123456789ab+dirty (0123456789ab, modified)",
		},
		"sources without version control": {"", &debug.BuildInfo{}, "symmem (devel)"},
	} {
		if got := versionText(buildOf("1.2.3", test.commit, test.info)); got != test.want+rest {
			t.Errorf("%s: got %q, want %q", name, got, test.want+rest)
		}
	}
}
