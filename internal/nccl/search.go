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
//  2. $SYMMEM_NCCL; if it is set, Load tries no other files
//  3. the copies that pip has installed in $VIRTUAL_ENV, $CONDA_PREFIX, or for the python3 of $PATH
//  4. the copy that the system's loader finds
//
// If no copy can be opened, the error matches ErrNoLibrary and lists all attempts.
func Load() (*Library, error) {
	prefixes := pythonPrefixes(os.Getenv)
	return openFirst(locations(os.Getenv, prefixes))
}

// location is a place where Load looks for NCCL.
type location struct {
	origin     string // for errors and Library.Origin
	onlyLoaded bool   // open only a copy that this process has loaded
	paths      []string
}

// locations returns the locations in the order of Load.
func locations(getenv func(string) string, prefixes []pythonPrefix) []location {
	loaded := location{
		origin: "the copy that this process has loaded", onlyLoaded: true,
		paths: []string{soname},
	}
	path := getenv(PathVariable)
	if path != "" { // Try no other files, so that a misspelled path causes an error.
		return []location{loaded, {origin: "$" + PathVariable, paths: []string{path}}}
	}

	all := []location{loaded}
	for _, p := range prefixes {
		all = append(all, location{origin: p.origin, paths: p.listLibraries()})
	}

	return append(all, location{origin: "the system's loader", paths: []string{soname}})
}

func openFirst(locations []location) (*Library, error) {
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

	const advice = "install NCCL (pip install nvidia-nccl-cu12, or a package of the operating " +
		"system), or set $" + PathVariable + " to the path of " + soname
	return nil, fmt.Errorf("%w: %s; tried:\n%w", ErrNoLibrary, advice, errors.Join(errs...))
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

// pythonPrefixes returns the Python installations that Load searches, without duplicates.
func pythonPrefixes(getenv func(string) string) []pythonPrefix {
	candidates := []pythonPrefix{
		{origin: "$VIRTUAL_ENV", folder: getenv("VIRTUAL_ENV")},
		{origin: "$CONDA_PREFIX", folder: getenv("CONDA_PREFIX")},
	}
	for _, python := range interpretersInPath() {
		candidates = append(candidates, pythonPrefix{
			origin: "the python3 of $PATH",
			folder: filepath.Dir(filepath.Dir(python)), // such as "/usr" for "/usr/bin/python3"
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

// interpretersInPath returns the first python3 of $PATH, with and without symbolic links. In a
// virtual environment, python3 is a link.
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

// wheelPatterns lists where pip installs NCCL in a pythonPrefix, the usual place first.
var wheelPatterns = []string{
	"lib/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"lib64/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"local/lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
	"lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
}

// listLibraries returns the copies of NCCL that pip has installed. If there are none, it returns a
// pattern. Opening it fails with an error that shows where a copy was expected.
func (p pythonPrefix) listLibraries() []string {
	var libraries []string
	for _, pattern := range wheelPatterns {
		matches, _ := filepath.Glob(filepath.Join(p.folder, pattern)) // fails for a "[" in p.folder
		slices.SortFunc(matches, newestFirst)
		libraries = append(libraries, matches...)
	}

	if libraries == nil {
		return []string{filepath.Join(p.folder, wheelPatterns[0])}
	}

	return libraries
}

// newestFirst compares paths that differ only in the version of Python. Longer paths are newer:
// python3.12 is newer than python3.9.
func newestFirst(a, b string) int {
	if len(a) != len(b) {
		return len(b) - len(a)
	}

	return strings.Compare(b, a)
}
