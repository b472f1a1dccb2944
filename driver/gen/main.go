// Command gen writes the names and numbers of reductions and operations where Go cannot import
// them from the tables of package driver: constants of the root package, the header of the C
// interface, the Python package, and the names in tuning tables. Run it with "go generate" in the
// directory of package driver; a test checks that the files match its output.
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

// write generates all files below the module's root.
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
