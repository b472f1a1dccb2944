package house

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestAliasesOfTheRootListTheFieldsOfTheirTypes holds the doc comments of what is declared in
// driver, and is public by an alias alone: "go doc" shows no fields of an alias.
func TestAliasesOfTheRootListTheFieldsOfTheirTypes(t *testing.T) {
	files := load(t)
	fields, seen := fieldsOf(files, "driver"), 0
	for _, f := range files {
		if f.folder() != "" || f.test() {
			continue
		}
		for _, d := range f.syntax.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			alias := g.Specs[0].(*ast.TypeSpec)
			want, ok := fields[f.cut(alias.Type)]
			if !ok || !alias.Assign.IsValid() || !alias.Name.IsExported() {
				continue
			}
			seen++
			said := strings.Join(strings.Fields(g.Doc.Text()), " ")
			if !strings.HasSuffix(said, strings.Join(want, " ")) {
				t.Errorf("%s: the doc comment of %s does not end with its fields:\n\t%s", f.path,
					alias.Name.Name, strings.Join(want, "\n\t"))
			}
		}
	}
	if seen < 10 {
		t.Errorf("found %d aliases", seen)
	}
}

// fieldsOf lists the fields of a package's structs, such as "Ranks []int", by "package.Type".
func fieldsOf(files []*file, folder string) map[string][]string {
	all := map[string][]string{}
	for _, f := range files {
		if f.folder() != folder || f.test() {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			body, ok := s.Type.(*ast.StructType)
			if !ok {
				return false
			}
			for _, field := range body.Fields.List {
				var names []string
				for _, name := range field.Names {
					names = append(names, name.Name)
				}
				name := folder + "." + s.Name.Name
				all[name] = append(all[name], strings.Join(names, ", ")+" "+f.cut(field.Type))
			}
			return false
		})
	}
	return all
}
