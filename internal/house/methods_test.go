package house

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// The rule for large types limits the methods of a type A and of its embedders: structs that embed
// *A. Methods of an embedder can use all fields of A.

// size is the size of a type, or a limit.
type size struct {
	methods int
	files   int // number of files with methods
}

func (s size) fitsInto(limit size) bool {
	return s.methods <= limit.methods && s.files <= limit.files
}

var usualLimit = size{methods: maxMethods, files: maxMethodFiles}

// exceptions holds the limits of types that may exceed usualLimit, by methodSet.name.
var exceptions = map[string]size{
	".Group": {methods: 56, files: 3}, // each operation is an exported method
}

func limitOf(name string) size {
	if limit, isException := exceptions[name]; isException {
		return limit
	}

	return usualLimit
}

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
		hasNoMethods := m.count == 0 // so there is no method to report
		if hasNoMethods || s.fitsInto(limit) {
			continue
		}

		slices.Sort(m.files)
		violation := m.lastMethod
		violation.text = fmt.Sprintf("%s has %d methods, including those of types that embed it (at "+
			"most %d are allowed), in %d files (at most %d are allowed): %s", name, s.methods,
			limit.methods, s.files, limit.files, strings.Join(m.files, ", "))
		found = append(found, violation)
	}

	return found
}

// methodSet describes a type and its methods.
type methodSet struct {
	name       string   // folder and type, such as "driver/host.arena"
	count      int      // number of methods of the type itself
	files      []string // files with these methods
	embedders  []string // methodSet.name of each embedder
	lastMethod finding  // position of the last method; has no text
}

// sizeOf counts the methods of embedders, but not their files.
func sizeOf(all methodSets, m *methodSet) size {
	s := size{methods: m.count, files: len(m.files)}
	for _, name := range m.embedders {
		embedder, isListed := all[name] // A type without methods may be missing.
		if isListed {
			s.methods += embedder.count
		}
	}

	return s
}

// methodSets holds each methodSet by its name.
type methodSets map[string]*methodSet

// methodsOf returns the types that have methods or embedders outside test files.
func methodsOf(files []*file) methodSets {
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

func (all methodSets) getOrAdd(name string) *methodSet {
	if all[name] == nil {
		all[name] = &methodSet{name: name}
	}

	return all[name]
}

// addMethod adds d if d is a method.
func (all methodSets) addMethod(f *file, d *ast.FuncDecl) {
	isMethod := d.Recv != nil
	if !isMethod {
		return
	}

	m := all.getOrAdd(f.folder() + "." + receiverName(d.Recv.List[0].Type))
	m.count++
	m.lastMethod = f.find(d.Pos(), "")
	if !slices.Contains(m.files, f.path) {
		m.files = append(m.files, f.path)
	}
}

// addEmbedder adds the type s as an embedder to each type A whose *A is an embedded field of s.
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
			embedded := all.getOrAdd(f.folder() + "." + name)
			embedded.embedders = append(embedded.embedders, embedder)
		}
	}
}

// receiverName returns "A" for the types A, *A and A[T]. It returns "" for an unnamed type or a
// type of another package.
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
