package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// size holds the number of methods of a type, and the number of files that contain them.
type size struct{ methods, files int }

// exceptions holds the limits of types that exceed the usual limits, which are maxMethods and
// maxMethodFiles. An entry must be removed when its type is small enough.
var exceptions = map[string]size{
	".Group": {56, 3}, // 48 methods are exported: each operation has one
}

// methodSet describes the methods of a type.
type methodSet struct {
	name  string // the package's folder, a dot and the type's name
	count int
	files []string
	// embedders lists the types of the package that embed a pointer to this type. Their methods
	// are counted too, because they can use all fields of this type.
	embedders []string
	last      finding // last method, without a text
}

// methodsOf returns the methods of all types by methodSet.name. It ignores tests.
func methodsOf(files []*file) map[string]*methodSet {
	all := map[string]*methodSet{}
	lookUp := func(name string) *methodSet {
		if all[name] == nil {
			all[name] = &methodSet{name: name}
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
					recordEmbedders(f, s, lookUp)
				}
			}
		}
	}

	return all
}

// recordEmbedders adds the type that s declares to the embedders of each type to which it embeds a
// pointer. lookUp returns the methodSet of a name.
func recordEmbedders(f *file, s ast.Spec, lookUp func(string) *methodSet) {
	declared, ok := s.(*ast.TypeSpec)
	if !ok {
		return
	}

	body, ok := declared.Type.(*ast.StructType)
	if !ok {
		return
	}

	embedder := f.folder() + "." + declared.Name.Name
	for _, field := range body.Fields.List {
		name := receiverName(field.Type)
		_, isPointer := field.Type.(*ast.StarExpr)
		isEmbedded := len(field.Names) == 0
		if isPointer && isEmbedded && name != "" {
			embedded := lookUp(f.folder() + "." + name)
			embedded.embedders = append(embedded.embedders, embedder)
		}
	}
}

// sizeOf returns the size of m, including the methods of its embedders but not their files.
func sizeOf(all map[string]*methodSet, m *methodSet) size {
	s := size{m.count, len(m.files)}
	for _, embedder := range m.embedders {
		if methods := all[embedder]; methods != nil {
			s.methods += methods.count
		}
	}

	return s
}

// fitsInto reports whether neither number of s exceeds that of limit.
func (s size) fitsInto(limit size) bool {
	return s.methods <= limit.methods && s.files <= limit.files
}

func limitOf(name string) size {
	if s, listed := exceptions[name]; listed {
		return s
	}

	return size{maxMethods, maxMethodFiles}
}

// largeTypes returns the types that have too many methods or methods in too many files.
func largeTypes(files []*file) (found []finding) {
	all := methodsOf(files)
	for name, m := range all {
		s := sizeOf(all, m)
		limit := limitOf(name)
		if m.count == 0 || s.fitsInto(limit) {
			continue
		}

		slices.Sort(m.files)
		m.last.text = fmt.Sprintf("%s has %d methods, including those of types that embed it (at most "+
			"%d are allowed), in %d files (at most %d are allowed): %s", name, s.methods, limit.methods,
			s.files, limit.files, strings.Join(m.files, ", "))
		found = append(found, m.last)
	}

	return found
}

func TestExceptionsAreNecessary(t *testing.T) {
	all := methodsOf(loadFiles(t))
	for name := range exceptions {
		switch m := all[name]; {
		case m == nil:
			t.Errorf("the type %s does not exist", name)
		case sizeOf(all, m).fitsInto(size{maxMethods, maxMethodFiles}):
			t.Errorf("%s is small enough: remove it from exceptions", name)
		}
	}
}

// receiverName returns the name of the type of a receiver or field, without a star and type
// arguments. It returns "" for types without a name and types of other packages.
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
