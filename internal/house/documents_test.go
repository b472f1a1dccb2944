package house

import (
	"go/ast"
	"go/token"
	"path"
	"sort"
	"strings"
)

var documentRules = []rule{
	{
		name:   "every package has a doc comment",
		reason: "readers start with the purpose of a package",
		check:  undocumentedPackages,
		bad:    []map[string]string{{"a/a.go": "package a\n"}},
		good: []map[string]string{
			{"a/a.go": "// Package a is documented.\npackage a\n", "a/b.go": "package a\n"},
			{"a/a_test.go": "// Package a holds tests alone.\npackage a\n"},
		},
	},
	{
		name:   "every exported name is documented",
		reason: "a signature does not specify units, errors, ownership or thread safety",
		check:  eachFile(undocumentedNames),
		bad: []map[string]string{
			{"a.go": "package a\n\nfunc F() {}\n"},
			{"a.go": "package a\n\ntype T int\n"},
			{"a.go": "package a\n\nconst C = 1\n"},
			{"a.go": "package a\n\nvar (\n\tV int\n)\n"},
			{"a.go": "package a\n\n// T is one.\ntype T int\n\nfunc (T) M() {}\n"},
		},
		good: []map[string]string{
			{"a.go": "package a\n\n// Units.\nconst (\n\tC = 1\n\tD = 2\n)\n"},
			{"a.go": "package a\n\ntype t int\n\nfunc (t) M() {}\n"},
			{"a.go": "package a\n\n// E is one.\ntype E int\n\nfunc (E) Error() string { return \"\" }\n"},
			{"a_test.go": "package a\n\nfunc TestF() {}\n"},
		},
	},
}

// undocumentedPackages treats an external test package, such as host_test, as a part of the package
// under test.
func undocumentedPackages(files []*file) []finding {
	firstFiles := map[string]*file{} // first file of each package in alphabetical order
	isDocumented := map[string]bool{}
	for _, f := range files {
		name := path.Join(f.folder(), strings.TrimSuffix(f.syntax.Name.Name, "_test"))
		if first := firstFiles[name]; first == nil || f.path < first.path {
			firstFiles[name] = f
		}

		if f.syntax.Doc != nil {
			isDocumented[name] = true
		}
	}

	var all []finding
	for name, f := range firstFiles {
		if !isDocumented[name] {
			all = append(all, f.find(f.syntax.Package, "package %s has no doc comment", name))
		}
	}

	sort.Slice(all, func(i, j int) bool { return all[i].path < all[j].path })
	return all
}

// standardMethods lists methods that the standard library documents.
var standardMethods = map[string]bool{"Error": true, "String": true, "Unwrap": true}

func undocumentedNames(f *file) []finding {
	if f.isTest() || f.isGenerated() {
		return nil
	}

	var all []finding
	for _, d := range f.syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && needsComment(d) {
				all = append(all, f.find(d.Pos(), "%s has no doc comment", d.Name.Name))
			}
		case *ast.GenDecl:
			all = append(all, undocumentedSpecs(f, d)...)
		}
	}

	return all
}

// needsComment reports whether a function is exported and not a standard method. Methods of
// unexported types are not exported.
func needsComment(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return d.Name.IsExported()
	}

	receiver := receiverName(d.Recv.List[0].Type)
	return ast.IsExported(receiver) && d.Name.IsExported() && !standardMethods[d.Name.Name]
}

// undocumentedSpecs checks constants, variables and types. A comment above a group of declarations
// documents all names of the group.
func undocumentedSpecs(f *file, d *ast.GenDecl) []finding {
	if d.Doc != nil || d.Tok == token.IMPORT {
		return nil
	}

	var all []finding
	for _, s := range d.Specs {
		for _, name := range namesWithoutComment(s) {
			if name.IsExported() {
				all = append(all, f.find(name.Pos(), "%s has no doc comment", name.Name))
			}
		}
	}

	return all
}

// namesWithoutComment returns nil if s has a comment.
func namesWithoutComment(s ast.Spec) []*ast.Ident {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Doc == nil && s.Comment == nil {
			return []*ast.Ident{s.Name}
		}
	case *ast.ValueSpec:
		if s.Doc == nil && s.Comment == nil {
			return s.Names
		}
	}

	return nil
}
