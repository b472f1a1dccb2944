package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// size holds the number of methods of a type and the number of files that contain them.
type size struct{ methods, files int }

// stillLarge lists the types that exceed the limits, with their sizes. They must not grow, and an
// entry must be removed once its type is small enough.
var stillLarge = map[string]size{
	".Group": {52, 3}, // 44 are exported; one for each operation
}

type methods struct {
	name  string // the folder, a dot and the type
	count int
	files []string
	// views lists the types of the package that embed a pointer to this type. Their methods count
	// as methods of this type, because they can use all of its fields.
	views []string
	last  finding // position of the last method
}

// methodsOf returns the methods of all types, by name of the type. It ignores methods in tests.
func methodsOf(files []*file) map[string]*methods {
	all := map[string]*methods{}
	lookUp := func(name string) *methods {
		if all[name] == nil {
			all[name] = &methods{name: name}
		}
		return all[name]
	}
	for _, f := range files {
		if f.isTest() {
			continue
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					continue
				}
				m := lookUp(f.folder() + "." + receiverName(d.Recv.List[0].Type))
				m.count++
				m.last = f.find(d.Pos(), "")
				if !slices.Contains(m.files, f.path) {
					m.files = append(m.files, f.path)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					noteViews(f, s, lookUp)
				}
			}
		}
	}
	return all
}

// noteViews records a struct as a view of each type whose pointer the struct embeds.
func noteViews(f *file, s ast.Spec, lookUp func(string) *methods) {
	declared, ok := s.(*ast.TypeSpec)
	if !ok {
		return
	}
	body, ok := declared.Type.(*ast.StructType)
	if !ok {
		return
	}
	view := f.folder() + "." + declared.Name.Name
	for _, field := range body.Fields.List {
		name := receiverName(field.Type)
		if _, pointer := field.Type.(*ast.StarExpr); pointer && len(field.Names) == 0 && name != "" {
			viewed := lookUp(f.folder() + "." + name)
			viewed.views = append(viewed.views, view)
		}
	}
}

// sizeOf returns the size of a type, including the methods of its views.
func sizeOf(all map[string]*methods, m *methods) size {
	s := size{m.count, len(m.files)}
	for _, view := range m.views {
		if v := all[view]; v != nil {
			s.methods += v.count
		}
	}
	return s
}

// fitsInto reports whether neither number exceeds the limit.
func (s size) fitsInto(limit size) bool {
	return s.methods <= limit.methods && s.files <= limit.files
}

func allowed(name string) size {
	if s, listed := stillLarge[name]; listed {
		return s
	}
	return size{maxMethods, maxMethodFiles}
}

// largeTypes returns the types that have too many methods or methods in too many files.
func largeTypes(files []*file) (found []finding) {
	all := methodsOf(files)
	for name, m := range all {
		s, limit := sizeOf(all, m), allowed(name)
		if m.count == 0 || s.fitsInto(limit) {
			continue
		}
		slices.Sort(m.files)
		m.last.text = fmt.Sprintf("%s has %d methods including those of its views (at most %d are "+
			"allowed) in %d files (at most %d are allowed): %s", name, s.methods, limit.methods, s.files,
			limit.files, strings.Join(m.files, ", "))
		found = append(found, m.last)
	}
	return found
}

func TestStillLargeTypesAreLarge(t *testing.T) {
	all := methodsOf(load(t))
	for name := range stillLarge {
		switch m := all[name]; {
		case m == nil:
			t.Errorf("the type %s does not exist", name)
		case sizeOf(all, m).fitsInto(size{maxMethods, maxMethodFiles}):
			t.Errorf("%s is small enough: remove it from stillLarge", name)
		}
	}
}

// receiverName returns the name of the type of a receiver, without the star and any type
// parameters.
func receiverName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiverName(t.X)
	case *ast.IndexExpr:
		return receiverName(t.X)
	case *ast.IndexListExpr:
		return receiverName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}
