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

// Build returns the paths of two shared libraries: the software CUDA driver, which contains
// symmem's kernels, and the software NCCL. If the user's cache lacks them, it compiles them with
// gcc and g++.
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

// cachedFolder returns the folder of the user's cache for a combination of flags, the embedded
// sources and extraSources. If the folder does not exist, it calls create to write the contents to
// a folder, which it adds to the cache.
func cachedFolder(
	flags []string, create func(dir string) error, extraSources ...fs.FS,
) (string, error) {
	userFolder, err := userCache()
	if err != nil {
		return "", err
	}

	allSources := append([]fs.FS{buildCode, sources, kernels.Sources}, extraSources...)
	key, err := keyOf(flags, allSources...)
	if err != nil {
		return "", err
	}

	return userFolder.findOrCreate(key, create)
}

// build writes the sources to dir and compiles both libraries there, with additional flags.
func build(dir string, flags ...string) error {
	sourcesByTarget := map[string]embed.FS{dir: sources, kernelsIn(dir): kernels.Sources}
	for target, source := range sourcesByTarget {
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

	// The software NCCL calls the software CUDA driver, which it finds in its own folder.
	libraryFlags := []string{"-L" + dir, "-l:" + cudaName, "-Wl,-rpath,$ORIGIN"}
	return compile(dir, "nccl", ncclName, append(libraryFlags, flags...))
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

// compile compiles the C sources in dir/src/folder to a library in dir. In the command, flags come
// after the sources, because flags that name libraries must be last.
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

// runCompiler runs a compiler and returns its standard output. An error contains part, which is the
// name of the compiled code, and the compiler's messages.
//
// Temporary files are in dir, or in the default folder if dir is "". In dir, they are removed
// together with dir, even if the compiler is killed.
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
