// Command gen generates the names and numbers of reductions and operations from the tables in
// package driver. Its output consists of constants of the root package, enumerations in the C
// header, names in the Python package, and names in tuning tables. Run it with "go generate" in
// the directory of package driver. A test checks that the generated files are up to date.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := write(".."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	all, err := generate(root)
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
