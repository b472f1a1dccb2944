package page

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the bundle")

// bundle builds a file of the folder bundle from its sources and returns its contents. entry is
// the main source file.
func bundle(t *testing.T, entry string) string {
	t.Helper()
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{entry}, Bundle: true, Format: api.FormatIIFE, Target: api.ES2022,
		MinifySyntax: true, MinifyWhitespace: true, MinifyIdentifiers: true,
		Charset: api.CharsetASCII, LegalComments: api.LegalCommentsNone, Outdir: "bundle",
		Banner: map[string]string{"js": "/* symmem. With uPlot, (c) Leon Sorokin, MIT license. */"},
	})
	for _, m := range result.Errors {
		t.Error(m.Text, m.Location)
	}

	if len(result.OutputFiles) != 1 {
		t.Fatalf("building %s: %d files; want 1", entry, len(result.OutputFiles))
	}

	return string(result.OutputFiles[0].Contents)
}

// TestBundle checks that the files in the folder bundle are up to date with their sources. With
// -rewrite, it first rebuilds them.
func TestBundle(t *testing.T) {
	for file, entry := range map[string]string{
		"bundle/page.js": "web/src/app.ts", "bundle/page.css": "web/src/page.css",
	} {
		built := bundle(t, entry)
		if *rewrite {
			if err := os.WriteFile(file, []byte(built), 0o644); err != nil {
				t.Fatal(err)
			}
		}

		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		if string(have) != built {
			t.Errorf("%s is not up to date with %s: run go test -run TestBundle -rewrite", file, entry)
		}

		if strings.Contains(strings.ToLower(built), "</s") {
			t.Errorf("%s contains the end tag of a script or style", file)
		}
	}
}
