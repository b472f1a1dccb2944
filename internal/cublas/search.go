package cublas

import (
	"os/exec"
	"path/filepath"
	"slices"
)

// PathVariable names the variable of the environment that says which libcublas to open.
const PathVariable = "SYMMEM_CUBLAS"

// sonames are those of CUDA 13 and 12, whose functions agree.
var sonames = []string{"libcublas.so.13", "libcublas.so.12"}

// wheels are where pip puts the library below an installation's prefix: packages nvidia-cublas of
// CUDA 13 and nvidia-cublas-cu12.
var wheels = []string{
	"lib/python3*/site-packages/nvidia/cu13/lib",
	"lib/python3*/site-packages/nvidia/cublas/lib",
	"lib64/python3*/site-packages/nvidia/cu13/lib",
	"lib64/python3*/site-packages/nvidia/cublas/lib",
	"local/lib/python3*/dist-packages/nvidia/cu13/lib",
	"local/lib/python3*/dist-packages/nvidia/cublas/lib",
	"lib/python3*/dist-packages/nvidia/cu13/lib",
	"lib/python3*/dist-packages/nvidia/cublas/lib",
}

// candidates lists what to open, best first. The system's loader, which searches for names without
// a folder, is asked last.
func candidates(getenv func(string) string) []string {
	var found []string
	for _, prefix := range prefixes(getenv) {
		for _, folder := range wheels {
			found = append(found, present(filepath.Join(prefix, folder))...)
		}
	}
	found = append(found, present("/usr/local/cuda/lib64")...)
	return append(found, sonames...)
}

// present lists the libraries in the folders of a pattern, the newest first.
func present(pattern string) []string {
	var found []string
	for _, name := range sonames {
		// The only error is one of the pattern.
		matches, _ := filepath.Glob(filepath.Join(pattern, name))
		slices.Reverse(matches)
		found = append(found, matches...)
	}
	return found
}

// prefixes lists the Python installations that the environment names. The python3 of a virtual
// environment is a link: both its own folder and that of the file count.
func prefixes(getenv func(string) string) []string {
	all := []string{getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX")}
	if python, err := exec.LookPath("python3"); err == nil {
		all = append(all, filepath.Dir(filepath.Dir(python)))
		if target, err := filepath.EvalSymlinks(python); err == nil {
			all = append(all, filepath.Dir(filepath.Dir(target)))
		}
	}
	return slices.DeleteFunc(all, func(prefix string) bool { return prefix == "" })
}
