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

// sources are the C sources of the libraries. The CUDA kernels are in kernels.Sources.
//
//go:embed src
var sources embed.FS

// Build returns the paths of two shared libraries, the software CUDA driver and the software NCCL.
// It compiles them with gcc and g++ unless they are in the user's cache.
//
// A process must load the driver before NCCL, and must not load another CUDA driver.
func Build() (cuda, nccl string, err error) {
	dir, err := cachedFolder(nil, func(dir string) error { return build(dir) })
	if err != nil {
		return "", "", err
	}

	return filepath.Join(dir, cudaName), filepath.Join(dir, ncclName), nil
}

const (
	cudaName = "libcuda.so.1"
	ncclName = "libnccl.so.2"
)

// cachedFolder returns the cache folder of the libraries built with flags. If it does not exist,
// cachedFolder creates it and calls fill to write the contents.
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

// build compiles both libraries in dir, and the kernels as part of libcuda.so.1.
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

	// libnccl.so.2 loads libcuda.so.1 from its own folder, $ORIGIN.
	linkCUDA := []string{"-L" + dir, "-l:" + cudaName, "-Wl,-rpath,$ORIGIN"}
	return compile(dir, "nccl", ncclName, append(linkCUDA, flags...))
}

// unpack copies the tree of source to dir.
func unpack(dir string, source embed.FS) error {
	return fs.WalkDir(source, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		target := filepath.Join(dir, filepath.FromSlash(name))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}

		data, err := source.ReadFile(name)
		if err != nil {
			return err
		}

		return os.WriteFile(target, data, 0o644)
	})
}

// compile compiles the C files of dir/src/folder to a library in dir.
func compile(dir, folder, library string, flags []string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", folder, "*.c"))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", folder, err)
	}

	// The linker needs libraries after the sources that use them, so flags are last.
	args := slices.Concat([]string{
		"-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
		"-Wall", "-Wextra", "-Werror", "-Wl,-soname," + library, "-o", filepath.Join(dir, library),
	}, files, flags)
	_, err = runCompiler(dir, folder, "gcc", args)
	return err
}

// runCompiler returns the standard output of a compiler, which keeps temporary files in dir unless
// dir is empty. Error messages contain part, a name for the compiled code.
func runCompiler(dir, part, compiler string, args []string) (string, error) {
	command := exec.Command(compiler, args...)
	if dir != "" {
		// If the compiler is killed, removing dir also removes its temporary files.
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
