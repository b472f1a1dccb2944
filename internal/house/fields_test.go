package house

import (
	"go/ast"
	"strings"
	"testing"
)

// TestRootAliasesLinkToTheirDefinitions checks the doc comments of types in the root package that
// are aliases of structs in package driver. Because "go doc" does not print the fields of an alias,
// the comment must link to the definition. It must not repeat the fields, because a copy would
// become outdated.
func TestRootAliasesLinkToTheirDefinitions(t *testing.T) {
	files := loadFiles(t)
	structs, seen := structsOf(files, "driver"), 0
	for _, f := range files {
		if f.folder() != "" || f.isTest() {
			continue
		}

		ast.Inspect(f.syntax, func(n ast.Node) bool {
			g, ok := n.(*ast.GenDecl)
			if !ok {
				return true
			}

			for _, s := range g.Specs {
				alias, ok := s.(*ast.TypeSpec)
				if !ok || !alias.Assign.IsValid() || !alias.Name.IsExported() {
					continue
				}

				target := f.cut(alias.Type)
				if !structs[target] {
					continue
				}

				seen++
				doc := alias.Doc.Text()
				if !g.Lparen.IsValid() {
					doc = g.Doc.Text()
				}

				if !strings.Contains(doc, "["+target+"]") || strings.Contains(doc, "\n\t") {
					t.Errorf("%s: the doc comment of %s must link to [%s] and must not list fields", f.path,
						alias.Name.Name, target)
				}
			}

			return false
		})
	}

	if seen < 10 {
		t.Errorf("found only %d aliases, want 10 or more", seen)
	}
}

// structsOf returns the structs of the package in a folder, such as "driver.TimeoutError".
func structsOf(files []*file, folder string) map[string]bool {
	all := map[string]bool{}
	for _, f := range files {
		if f.folder() != folder || f.isTest() {
			continue
		}

		ast.Inspect(f.syntax, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if ok {
				_, all[folder+"."+s.Name.Name] = s.Type.(*ast.StructType)
			}

			return !ok
		})
	}

	return all
}
