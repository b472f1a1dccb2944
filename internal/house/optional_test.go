package house

import "go/ast"

var seamRules = []rule{{
	name:   "optional interfaces of backends have names in package driver",
	reason: "authors of backends read driver/optional.go rather than all callers",
	check: eachFile(func(f *file) []finding {
		if f.folder() != "" && !isWithin(f.folder(), "driver") {
			return nil
		}

		var all []finding
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if a, ok := n.(*ast.TypeAssertExpr); ok && nameless(a.Type) {
				all = append(all, f.find(a.Pos(), "asserts an interface without a name"))
			}

			return true
		})
		return all
	}),
	bad: []map[string]string{
		{"a.go": "package a\n\nvar _, _ = x.(interface{ Ordinal() int })\n"},
		{"driver/a/a.go": "package a\n\nvar _, _ = x.(interface{ Handle() uintptr })\n"},
	},
	good: []map[string]string{
		{"a.go": "package a\n\nvar _, _ = x.(driver.Numbered)\n"},
		{"a.go": "package a\n\nvar _, _ = x.(interface{ Unwrap() []error })\n"},
		{"internal/a/a.go": "package a\n\nvar _, _ = x.(interface{ OutOfMemory() bool })\n"},
	},
}}

// nameless reports whether a type is an interface literal with methods. The interface of
// errors.Join is an exception, because it has no name in Go either.
func nameless(e ast.Expr) bool {
	i, ok := e.(*ast.InterfaceType)
	if !ok || i.Methods.NumFields() == 0 {
		return false
	}

	names := i.Methods.List[0].Names
	return len(names) == 0 || names[0].Name != "Unwrap"
}
