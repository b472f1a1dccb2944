package house

import (
	"go/ast"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// The module has assembly only for amd64, and fallbacks in Go for other processors. This test
// checks the types of the fallbacks. A build would take ten times as long, because it also compiles
// the standard library.
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

	packageCount := 0
	packages.Visit(all, nil, func(p *packages.Package) {
		for _, err := range p.Errors {
			t.Errorf("%s: %v", p.ID, err)
		}

		isOfModule := p.PkgPath == module || strings.HasPrefix(p.PkgPath, module+"/")
		if !isOfModule {
			return
		}

		packageCount++
		for _, name := range unimplementedFunctions(p) {
			t.Errorf("%s: %s has neither a body nor assembly", p.ID, name)
		}
	})
	if packageCount == 0 {
		t.Error("found no package of the module")
	}
}

func unimplementedFunctions(p *packages.Package) (names []string) {
	hasAssembly := len(p.OtherFiles) > 0
	if hasAssembly {
		return nil
	}

	for _, syntax := range p.Syntax {
		for _, d := range syntax.Decls {
			function, isFunction := d.(*ast.FuncDecl)
			if isFunction && function.Body == nil && !isLinkname(function) {
				names = append(names, function.Name.Name)
			}
		}
	}

	return names
}

// isLinkname reports whether a go:linkname directive links the function to another package.
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
