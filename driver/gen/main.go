// Command gen generates files with the names and numbers of reductions and operations from the
// tables of package driver: constants of the root package, enumerations in the C header, the Python
// package's names, and the names in tuning tables. Run it with "go generate" in the directory of
// package driver. A test checks that the generated files are current.
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
