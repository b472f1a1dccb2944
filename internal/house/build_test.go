package house

import (
	"go/ast"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// TestModuleBuildsForOtherProcessors type-checks all packages, including tests, for a processor for
// which this module has no assembly, so that portable kernels are used. Compiling would take ten
// times as long, because it would include the standard library.
func TestModuleBuildsForOtherProcessors(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped in short mode: it also type-checks the standard library")
	}

	all, err := packages.Load(&packages.Config{
		Mode: packages.LoadAllSyntax, Context: t.Context(), Dir: "../..", Tests: true,
		Env: append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0"),
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}

	own := 0
	packages.Visit(all, nil, func(p *packages.Package) {
		for _, err := range p.Errors {
			t.Errorf("%s: %v", p.ID, err)
		}

		if p.PkgPath != module && !strings.HasPrefix(p.PkgPath, module+"/") {
			return
		}

		own++
		for _, f := range withoutBody(p) {
			t.Errorf("%s: %s has neither a body nor assembly", p.ID, f)
		}
	})
	if own == 0 {
		t.Error("found no package of the module")
	}
}

// withoutBody returns the functions of a package that have no body and are implemented neither in
// assembly nor in another package.
func withoutBody(p *packages.Package) (names []string) {
	if len(p.OtherFiles) > 0 {
		return nil
	}

	for _, f := range p.Syntax {
		for _, d := range f.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Body == nil && !isLinkname(f) {
				names = append(names, f.Name.Name)
			}
		}
	}

	return names
}

// isLinkname reports whether a function is implemented by another package.
func isLinkname(f *ast.FuncDecl) bool {
	if f.Doc == nil {
		return false
	}

	for _, c := range f.Doc.List {
		if strings.HasPrefix(c.Text, "//go:linkname ") {
			return true
		}
	}

	return false
}
