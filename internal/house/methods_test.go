package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// A type may have at most maxMethods methods, in at most maxMethodFiles files. Test files do not
// count.
//
// Suppose that type A has 20 methods, and a struct type B with 15 methods embeds *A. The methods of
// B count as methods of A too, because they can use all fields of A. So A has 35 methods. B is
// called an embedder of A.

// size holds two numbers of a type, or the limits for them.
type size struct {
	methods int
	files   int // that contain methods
}

// fitsInto reports whether neither number of s exceeds that of limit.
func (s size) fitsInto(limit size) bool {
	return s.methods <= limit.methods && s.files <= limit.files
}

// usualLimit is the limit of each type that is not in exceptions.
var usualLimit = size{methods: maxMethods, files: maxMethodFiles}

// exceptions holds the limits of types that do not fit into usualLimit. The keys have the form of
// methodSet.name. An entry must be removed when its type is small enough.
var exceptions = map[string]size{
	".Group": {methods: 56, files: 3}, // 48 methods are exported: each operation has one
}

// limitOf returns the limit of the type with a given methodSet.name.
func limitOf(name string) size {
	if limit, isException := exceptions[name]; isException {
		return limit
	}

	return usualLimit
}

// TestExceptionsAreNecessary checks that each type in exceptions exists and exceeds usualLimit.
func TestExceptionsAreNecessary(t *testing.T) {
	all := methodsOf(loadFiles(t))
	for name := range exceptions {
		switch m := all[name]; {
		case m == nil:
			t.Errorf("the type %s does not exist", name)
		case sizeOf(all, m).fitsInto(usualLimit):
			t.Errorf("%s is small enough: remove it from exceptions", name)
		}
	}
}

// largeTypes returns a finding for each type that exceeds its limit.
func largeTypes(files []*file) (found []finding) {
	all := methodsOf(files)
	for name, m := range all {
		s := sizeOf(all, m)
		limit := limitOf(name)
		hasMethods := m.count > 0
		if !hasMethods || s.fitsInto(limit) {
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

// methodSet describes a type and its methods.
type methodSet struct {
	name      string   // the package's folder, a dot and the type's name, as in "driver/host.arena"
	count     int      // number of methods, without those of embedders
	files     []string // that contain these methods
	embedders []string // methodSet.name of types in the same package
	last      finding  // the position of the last of these methods; its text is empty
}

// sizeOf returns the size of the type m. It includes the methods of embedders, but not their files.
func sizeOf(all map[string]*methodSet, m *methodSet) size {
	s := size{methods: m.count, files: len(m.files)}
	for _, name := range m.embedders {
		embedder := all[name]
		if embedder != nil { // The embedder has methods, or is embedded too.
			s.methods += embedder.count
		}
	}

	return s
}

// methodSets collects methodSets, by methodSet.name.
type methodSets map[string]*methodSet

// methodsOf returns the types that have methods or embedders in files that are not tests.
func methodsOf(files []*file) map[string]*methodSet {
	all := methodSets{}
	for _, f := range files {
		if f.isTest() {
			continue
		}

		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all.addMethod(f, d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					all.addEmbedder(f, s)
				}
			}
		}
	}

	return all
}

// lookUp returns the methodSet of a type. It adds an empty one if there is none.
func (all methodSets) lookUp(name string) *methodSet {
	if all[name] == nil {
		all[name] = &methodSet{name: name}
	}

	return all[name]
}

// addMethod adds a method to its type. It ignores other functions.
func (all methodSets) addMethod(f *file, d *ast.FuncDecl) {
	isMethod := d.Recv != nil
	if !isMethod {
		return
	}

	m := all.lookUp(f.folder() + "." + receiverName(d.Recv.List[0].Type))
	m.count++
	m.last = f.find(d.Pos(), "")
	if !slices.Contains(m.files, f.path) {
		m.files = append(m.files, f.path)
	}
}

// addEmbedder adds a declared struct type to the embedders of each type to which it embeds a
// pointer. It ignores other declarations.
func (all methodSets) addEmbedder(f *file, s ast.Spec) {
	declared, isType := s.(*ast.TypeSpec)
	if !isType {
		return
	}

	body, isStruct := declared.Type.(*ast.StructType)
	if !isStruct {
		return
	}

	embedder := f.folder() + "." + declared.Name.Name
	for _, field := range body.Fields.List {
		name := receiverName(field.Type)
		_, isPointer := field.Type.(*ast.StarExpr)
		isEmbedded := len(field.Names) == 0
		if isPointer && isEmbedded && name != "" {
			embedded := all.lookUp(f.folder() + "." + name)
			embedded.embedders = append(embedded.embedders, embedder)
		}
	}
}

// receiverName returns the name of the type of a receiver or field: "A" for *A and for A[T]. It
// returns "" for types without a name and types of other packages.
func receiverName(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiverName(t.X)
	case *ast.IndexExpr: // one type argument
		return receiverName(t.X)
	case *ast.IndexListExpr: // several type arguments
		return receiverName(t.X)
	case *ast.Ident:
		return t.Name
	}

	return ""
}
