package nccl

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"symmem/internal/dl"
)

// PathVariable is the environment variable for the path of libnccl.
const PathVariable = "SYMMEM_NCCL"

const soname = "libnccl.so.2"

// Load opens the first of these copies of NCCL that can be opened:
//
//  1. the copy that the process has loaded
//  2. $SYMMEM_NCCL; if it is set, Load stops here
//  3. the copies in the Python environment: $VIRTUAL_ENV, $CONDA_PREFIX, the python3 in $PATH
//  4. the copy that the system's loader finds
//
// If no copy can be opened, the error matches ErrNoLibrary and lists all attempts.
func Load() (*Library, error) {
	prefixes := pythonPrefixes(os.Getenv)
	return open(locations(os.Getenv, prefixes))
}

// location is a place where Load looks for NCCL.
type location struct {
	origin string // for errors and Library.Origin
	// onlyLoaded limits the location to libraries that this process has already loaded.
	onlyLoaded bool
	paths      []string
}

// locations returns the locations in the order of Load. If SYMMEM_NCCL is set, other files are not
// tried, so that a misspelled path causes an error.
func locations(getenv func(string) string, prefixes []pythonPrefix) []location {
	loaded := location{
		origin: "the copy that this process has loaded", onlyLoaded: true,
		paths: []string{soname},
	}
	if path := getenv(PathVariable); path != "" {
		return []location{loaded, {origin: "$" + PathVariable, paths: []string{path}}}
	}

	all := []location{loaded}
	for _, p := range prefixes {
		all = append(all, location{origin: p.origin, paths: p.listLibraries()})
	}

	return append(all, location{origin: "the system's loader", paths: []string{soname}})
}

func open(locations []location) (*Library, error) {
	var errs []error
	for _, l := range locations {
		for _, path := range l.paths {
			library, err := l.open(path)
			if err == nil {
				return newLibrary(library, l.origin)
			}

			errs = append(errs, fmt.Errorf("%s: %w", l.origin, err))
		}
	}

	return nil, fmt.Errorf("%w: install NCCL (pip install nvidia-nccl-cu12, or a package of the "+
		"operating system), or set $%s to the path of %s; tried:\n%w",
		ErrNoLibrary, PathVariable, soname, errors.Join(errs...))
}

func (l location) open(path string) (*dl.Library, error) {
	if l.onlyLoaded {
		library, isLoaded := dl.FindLoaded(path)
		if !isLoaded {
			return nil, fmt.Errorf("%s is not loaded", path)
		}

		return library, nil
	}

	return dl.Open(path)
}

// pythonPrefix is a Python installation.
type pythonPrefix struct {
	origin string // for location.origin
	folder string // contains bin and lib, such as "/usr"
}

// pythonPrefixes returns the Python installations that the environment selects, without duplicates.
func pythonPrefixes(getenv func(string) string) []pythonPrefix {
	candidates := []pythonPrefix{
		{origin: "$VIRTUAL_ENV", folder: getenv("VIRTUAL_ENV")},
		{origin: "$CONDA_PREFIX", folder: getenv("CONDA_PREFIX")},
	}
	for _, python := range interpretersInPath() {
		candidates = append(candidates, pythonPrefix{
			origin: "the python3 of $PATH", folder: prefixOf(python),
		})
	}

	var prefixes []pythonPrefix
	isListed := map[string]bool{} // by folder
	for _, c := range candidates {
		isSet := c.folder != ""
		if isSet && !isListed[c.folder] {
			isListed[c.folder] = true
			prefixes = append(prefixes, c)
		}
	}

	return prefixes
}

// interpretersInPath returns the first python3 of $PATH, followed by its target. In a virtual
// environment, python3 is a symbolic link into another installation.
func interpretersInPath() []string {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil
	}

	target, err := filepath.EvalSymlinks(python)
	if err != nil {
		return []string{python}
	}

	return []string{python, target}
}

// prefixOf returns "/usr" for "/usr/bin/python3".
func prefixOf(executable string) string { return filepath.Dir(filepath.Dir(executable)) }

// wheelPatterns lists where pip installs NCCL in a pythonPrefix, the usual place first.
var wheelPatterns = []string{
	"lib/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"lib64/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"local/lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
	"lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
}

// listLibraries returns the copies of NCCL that match the patterns. If there are none, it returns
// the usual pattern, so that the error of Load shows where a copy was expected.
func (p pythonPrefix) listLibraries() []string {
	var libraries []string
	for _, pattern := range wheelPatterns {
		// An error means that the name of the folder makes the pattern malformed.
		matches, _ := filepath.Glob(filepath.Join(p.folder, pattern))
		slices.SortFunc(matches, newestFirst)
		libraries = append(libraries, matches...)
	}

	if libraries == nil {
		return []string{filepath.Join(p.folder, wheelPatterns[0])}
	}

	return libraries
}

// newestFirst compares paths that differ only in the version of Python. A longer path has a newer
// version, such as python3.12 instead of python3.9.
func newestFirst(a, b string) int {
	if len(a) != len(b) {
		return len(b) - len(a)
	}

	return strings.Compare(b, a)
}
