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

// PathVariable is the environment variable that holds the path of the libnccl to open.
const PathVariable = "SYMMEM_NCCL"

const soname = "libnccl.so.2"

// wheels lists the paths of NCCL in the pip packages nvidia-nccl-cu12 and nvidia-nccl-cu13, below
// the prefix of a Python installation.
var wheels = []string{
	"lib/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"lib64/python3*/site-packages/nvidia/nccl/lib/" + soname,
	"local/lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
	"lib/python3*/dist-packages/nvidia/nccl/lib/" + soname,
}

type location struct {
	origin        string // description of the location
	alreadyLoaded bool   // whether only a copy that the process has loaded counts
	paths         []string
}

// Load opens the first copy of NCCL that can be opened. It tries, in this order, the copy that the
// process has already loaded, the file named by SYMMEM_NCCL, the Python environment ($VIRTUAL_ENV,
// $CONDA_PREFIX, the python3 in $PATH), and the system's loader. Environment variables that NCCL
// reads must be set before.
//
// If no copy can be opened, the error matches ErrNoLibrary and lists all attempts.
func Load() (*Library, error) { return open(locations(os.Getenv, pythonPrefixes(os.Getenv))) }

// locations lists the locations to search. If SYMMEM_NCCL is set, other files are not searched, so
// that a misspelt path causes an error.
func locations(getenv func(string) string, prefixes []prefix) []location {
	locations := []location{{
		origin: "the copy that this process has loaded", alreadyLoaded: true,
		paths: []string{soname},
	}}
	if path := getenv(PathVariable); path != "" {
		return append(locations, location{origin: "$" + PathVariable, paths: []string{path}})
	}
	for _, p := range prefixes {
		locations = append(locations, location{origin: p.origin, paths: p.libraries()})
	}
	return append(locations, location{origin: "the system's loader", paths: []string{soname}})
}

type prefix struct{ origin, folder string }

// libraries returns the libraries below the prefix, beginning with those of the newest Python. If
// there are none, it returns the pattern for the error message.
func (p prefix) libraries() []string {
	var found []string
	for _, pattern := range wheels {
		matches, _ := filepath.Glob(filepath.Join(p.folder, pattern)) // the pattern is valid
		slices.SortFunc(matches, newestFirst)
		found = append(found, matches...)
	}
	if found == nil {
		return []string{filepath.Join(p.folder, wheels[0])}
	}
	return found
}

// newestFirst compares lengths first, so that python3.12 comes before python3.9.
func newestFirst(a, b string) int {
	if len(a) != len(b) {
		return len(b) - len(a)
	}
	return strings.Compare(b, a)
}

// pythonPrefixes returns the Python installations of the environment. The python3 of a virtual
// environment is a symbolic link, so pythonPrefixes returns the prefix of the link and the prefix
// of its target.
func pythonPrefixes(getenv func(string) string) []prefix {
	prefixes := []prefix{}
	add := func(origin, folder string) {
		known := slices.ContainsFunc(prefixes, func(p prefix) bool { return p.folder == folder })
		if folder != "" && !known {
			prefixes = append(prefixes, prefix{origin, folder})
		}
	}
	add("$VIRTUAL_ENV", getenv("VIRTUAL_ENV"))
	add("$CONDA_PREFIX", getenv("CONDA_PREFIX"))
	if python, err := exec.LookPath("python3"); err == nil {
		add("the python3 of $PATH", filepath.Dir(filepath.Dir(python)))
		if target, err := filepath.EvalSymlinks(python); err == nil {
			add("the python3 of $PATH", filepath.Dir(filepath.Dir(target)))
		}
	}
	return prefixes
}

func open(locations []location) (*Library, error) {
	var errs []error
	for _, p := range locations {
		for _, path := range p.paths {
			library, err := p.open(path)
			if err == nil {
				return newLibrary(library, p.origin)
			}
			errs = append(errs, fmt.Errorf("%s: %w", p.origin, err))
		}
	}
	return nil, fmt.Errorf("%w: install it (pip install nvidia-nccl-cu12, or a package of the "+
		"system), or set $%s to its file; tried:\n%w",
		ErrNoLibrary, PathVariable, errors.Join(errs...))
}

func (p location) open(path string) (*dl.Library, error) {
	if !p.alreadyLoaded {
		return dl.Open(path)
	}
	if library, ok := dl.FindLoaded(path); ok {
		return library, nil
	}
	return nil, fmt.Errorf("%s is not loaded", path)
}
