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

// Build returns the paths of the software driver, which includes our kernels, and of the software
// NCCL. If the libraries are not in the user's cache, Build compiles them with gcc and g++.
//
// A process must load cuda before nccl, because NCCL finds the driver by its soname. The process
// must not load any other driver.
func Build() (cuda, nccl string, err error) {
	dir, err := cachedFolder(nil, func(dir string) error { return build(dir) })
	return filepath.Join(dir, cudaName), filepath.Join(dir, ncclName), err
}

// The sonames of the libraries, which are also their file names.
const (
	cudaName = "libcuda.so.1"
	ncclName = "libnccl.so.2"
)

// cachedFolder returns the folder in the user's cache for the embedded sources, the flags and the
// extra sources. If the folder does not exist, cachedFolder calls fill to create its contents.
func cachedFolder(flags []string, fill func(dir string) error, extra ...fs.FS) (string, error) {
	root, err := userCache()
	if err != nil {
		return "", err
	}
	key, err := keyOf(flags, append([]fs.FS{recipe, sources, kernels.Sources}, extra...)...)
	if err != nil {
		return "", err
	}
	return root.folder(key, fill)
}

// build compiles the libraries into dir with additional flags.
func build(dir string, flags ...string) error {
	for target, source := range map[string]embed.FS{dir: sources, kernelsIn(dir): kernels.Sources} {
		if err := unpack(target, source); err != nil {
			return fmt.Errorf("unpacking the software GPU: %w", err)
		}
	}
	object, err := compileKernels(dir, flags)
	if err != nil {
		return err
	}
	if err := compile(dir, "cuda", cudaName, append([]string{object}, flags...)); err != nil {
		return err
	}
	needs := []string{"-L" + dir, "-l:" + cudaName, "-Wl,-rpath,$ORIGIN"}
	return compile(dir, "nccl", ncclName, append(needs, flags...))
}

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

// compile builds a library from a folder of C sources. flags may name libraries, which must follow
// the sources on the command line.
func compile(dir, folder, library string, flags []string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", folder, "*.c"))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", folder, err)
	}
	args := slices.Concat([]string{
		"-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
		"-Wall", "-Wextra", "-Werror", "-Wl,-soname," + library, "-o", filepath.Join(dir, library),
	}, files, flags)
	_, err = runCompiler(dir, folder, "gcc", args)
	return err
}

// runCompiler runs a compiler and returns its output. Errors name part. The compiler's temporary
// files are in dir, so that they are removed with dir even if the compiler is killed.
func runCompiler(dir, part, compiler string, args []string) (string, error) {
	c := exec.Command(compiler, args...)
	if dir != "" {
		c.Env = append(os.Environ(), "TMPDIR="+dir)
	}
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", part, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
