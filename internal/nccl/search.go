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

// PathVariable is the environment variable that holds the path of libnccl.
const PathVariable = "SYMMEM_NCCL"

// soname is the file name under which the system's loader finds NCCL.
const soname = "libnccl.so.2"

// Load opens the first copy of NCCL that can be opened, in this order:
//
//  1. the copy that the process has loaded
//  2. the file named by SYMMEM_NCCL; if it is set, Load does not go on to 3 and 4
//  3. the copies in the Python environment ($VIRTUAL_ENV, $CONDA_PREFIX, the python3 in $PATH)
//  4. the copy that the system's loader finds
//
// If there is none, the error matches ErrNoLibrary and lists all attempts.
func Load() (*Library, error) {
	prefixes := pythonPrefixes(os.Getenv)
	return open(locations(os.Getenv, prefixes))
}

// location is one place where Load looks for NCCL.
type location struct {
	origin       string // description for errors and Library.Origin
	mustBeLoaded bool   // open a file only if this process has already loaded it
	paths        []string
}

// locations returns the locations that Load tries, in order. If SYMMEM_NCCL is set, it lists only
// that file and the loaded copy, so that a misspelt path causes an error.
func locations(getenv func(string) string, prefixes []pythonPrefix) []location {
	loaded := location{
		origin: "the copy that this process has loaded", mustBeLoaded: true,
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

// open opens the first file of the locations that can be opened.
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

// open opens a file of the location.
func (l location) open(path string) (*dl.Library, error) {
	if !l.mustBeLoaded {
		return dl.Open(path)
	}

	if library, isLoaded := dl.FindLoaded(path); isLoaded {
		return library, nil
	}

	return nil, fmt.Errorf("%s is not loaded", path)
}

// pythonPrefix is the folder of a Python installation, such as "/usr". The folder contains the
// executable bin/python3, and the installed packages below lib.
type pythonPrefix struct {
	origin string // how it was found, for location.origin
	folder string
}

// pythonPrefixes returns the Python installations that the environment selects, without
// duplicates. The python3 of a virtual environment is a symbolic link. For such a link, it returns
// two installations: the one with the link, and the one with its target.
func pythonPrefixes(getenv func(string) string) []pythonPrefix {
	prefixes := []pythonPrefix{}
	add := func(origin, folder string) {
		hasFolder := func(p pythonPrefix) bool { return p.folder == folder }
		if folder != "" && !slices.ContainsFunc(prefixes, hasFolder) {
			prefixes = append(prefixes, pythonPrefix{origin: origin, folder: folder})
		}
	}
	add("$VIRTUAL_ENV", getenv("VIRTUAL_ENV"))
	add("$CONDA_PREFIX", getenv("CONDA_PREFIX"))
	python, err := exec.LookPath("python3")
	if err != nil {
		return prefixes // there is no python3 in $PATH
	}

	const origin = "the python3 of $PATH"
	add(origin, prefixOf(python))
	if target, err := filepath.EvalSymlinks(python); err == nil {
		add(origin, prefixOf(target))
	}

	return prefixes
}

// prefixOf returns the folder of an installation: "/usr" for the executable "/usr/bin/python3".
func prefixOf(executable string) string { return filepath.Dir(filepath.Dir(executable)) }

// wheelPatterns lists where pip installs NCCL, relative to the folder of a Python installation. The
// first pattern is the usual one.
var wheelPatterns = []string{
	"lib/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"lib64/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"local/lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
	"lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
}

// listLibraries returns the copies of NCCL in a Python installation, by pattern. For each pattern,
// the copy of the newest Python is first. If there is no copy, listLibraries returns a pattern for
// the error message.
func (p pythonPrefix) listLibraries() []string {
	var libraries []string
	for _, pattern := range wheelPatterns {
		matches, _ := filepath.Glob(filepath.Join(p.folder, pattern)) // no match if it is malformed
		slices.SortFunc(matches, newestFirst)
		libraries = append(libraries, matches...)
	}

	if libraries == nil {
		return []string{filepath.Join(p.folder, wheelPatterns[0])}
	}

	return libraries
}

// newestFirst compares paths that differ only in the version of Python. It puts longer paths first,
// so that python3.12 precedes python3.9, and otherwise the higher version.
func newestFirst(a, b string) int {
	if len(a) != len(b) {
		return len(b) - len(a)
	}

	return strings.Compare(b, a)
}
