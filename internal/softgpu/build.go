package softgpu

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"symmem/driver/nccl/kernels"
)

//go:embed src
var sources embed.FS

// The software GPU consists of two shared libraries, which replace those of NVIDIA. To build them
// in a folder such as /tmp/new, this file takes these steps:
//
//   - It unpacks the embedded sources to /tmp/new/src, and those of symmem's GPU kernels to
//     /tmp/new/kernels.
//   - It compiles the kernels for the CPU to an object file.
//   - It compiles src/cuda together with this object file to libcuda.so.1, the CUDA driver.
//   - It compiles src/nccl to libnccl.so.2, which calls functions of libcuda.so.1.

// Build returns the paths of the software CUDA driver and of the software NCCL. If the user's cache
// lacks them, it compiles them with gcc and g++.
//
// A process must load cuda before nccl, and must not load another CUDA driver.
func Build() (cuda, nccl string, err error) {
	var noFlags []string
	dir, err := cachedFolder(noFlags, func(dir string) error { return build(dir) })
	if err != nil {
		return "", "", err
	}

	return filepath.Join(dir, cudaName), filepath.Join(dir, ncclName), nil
}

// File names of the libraries, which are also their sonames.
const (
	cudaName = "libcuda.so.1"
	ncclName = "libnccl.so.2"
)

// cachedFolder returns a folder of the user's cache. The cache has one for each combination of
// flags, embedded sources and extraSources. If it does not exist, fill must write the contents to a
// new folder, which becomes part of the cache.
func cachedFolder(
	flags []string, fill func(dir string) error, extraSources ...fs.FS,
) (string, error) {
	cache, err := userCache()
	if err != nil {
		return "", err
	}

	allSources := append([]fs.FS{buildCode, sources, kernels.Sources}, extraSources...)
	key, err := keyOf(flags, allSources...)
	if err != nil {
		return "", err
	}

	return cache.findOrCreate(key, fill)
}

// build builds both libraries in dir. The compilers get additional flags.
func build(dir string, flags ...string) error {
	if err := unpack(dir, sources); err != nil {
		return fmt.Errorf("unpacking the software GPU: %w", err)
	}

	if err := unpack(kernelsIn(dir), kernels.Sources); err != nil {
		return fmt.Errorf("unpacking the software GPU: %w", err)
	}

	object, err := compileKernels(dir, flags)
	if err != nil {
		return err
	}

	if err := compile(dir, "cuda", cudaName, append([]string{object}, flags...)); err != nil {
		return err
	}

	// The software NCCL finds the CUDA driver in the same folder, $ORIGIN.
	cudaFlags := []string{"-L" + dir, "-l:" + cudaName, "-Wl,-rpath,$ORIGIN"}
	return compile(dir, "nccl", ncclName, append(cudaFlags, flags...))
}

// unpack writes the files of source to dir, with the same folders.
func unpack(dir string, source embed.FS) error {
	return fs.WalkDir(source, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		target := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}

		data, err := source.ReadFile(name)
		if err != nil {
			return err
		}

		return os.WriteFile(target, data, 0o644)
	})
}

// compile compiles the C sources in dir/src/folder to a library in dir. flags may name object files
// and libraries.
func compile(dir, folder, library string, flags []string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", folder, "*.c"))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", folder, err)
	}

	// Libraries must follow the sources that use them, so flags are last.
	args := slices.Concat([]string{
		"-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
		"-Wall", "-Wextra", "-Werror", "-Wl,-soname," + library, "-o", filepath.Join(dir, library),
	}, files, flags)
	_, err = runCompiler(dir, folder, "gcc", args)
	return err
}

// runCompiler runs a compiler and returns its standard output. An error contains the compiler's
// messages, and part, which is the name of the compiled code.
//
// The compiler's temporary files are in dir or, if dir is "", in the default folder. If the
// compiler is killed, files in dir are removed later, together with dir.
func runCompiler(dir, part, compiler string, args []string) (string, error) {
	command := exec.Command(compiler, args...)
	if dir != "" {
		command.Env = append(os.Environ(), "TMPDIR="+dir)
	}

	var stdout, stderr strings.Builder
	command.Stdout = &stdout
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", part, err, strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}
