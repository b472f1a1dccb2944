package softgpu

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	var noFlags []string
	dir, err := cachedFolder(noFlags, func(dir string) error { return build(dir, noFlags) })
	if err != nil {
		return "", "", err
	}

	return filepath.Join(dir, cudaName), filepath.Join(dir, ncclName), nil
}

const (
	cudaName = "libcuda.so.1"
	ncclName = "libnccl.so.2"
)

// cachedFolder returns the cache folder for the flags and all sources. If it does not exist,
// cachedFolder creates it and calls fill to compile the libraries there.
func cachedFolder(
	flags []string, fill func(dir string) error, testSources ...fs.FS,
) (string, error) {
	cache, err := userCache()
	if err != nil {
		return "", err
	}

	allSources := append([]fs.FS{buildCode, sources, kernels.Sources}, testSources...)
	key, err := keyOf(flags, allSources...)
	if err != nil {
		return "", err
	}

	return cache.findOrCreate(key, fill)
}

// build compiles both libraries in dir, and the kernels as part of libcuda.so.1.
func build(dir string, flags []string) error {
	if err := unpack(dir, sources); err != nil {
		return fmt.Errorf("unpacking the software GPU: %w", err)
	}

	if err := unpack(kernelsIn(dir), kernels.Sources); err != nil {
		return fmt.Errorf("unpacking the software GPU: %w", err)
	}

	kernelObject, err := compileKernels(dir, flags)
	if err != nil {
		return err
	}

	if err := compile(dir, "cuda", cudaName, append([]string{kernelObject}, flags...)); err != nil {
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

func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }

// compile compiles the C files of dir/src/folder to a library in dir. flags may name libraries.
func compile(dir, folder, library string, flags []string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", folder, "*.c"))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", folder, err)
	}

	// The linker ignores libraries before the sources, so flags are last.
	args := slices.Concat([]string{
		"-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
		"-Wall", "-Wextra", "-Werror", "-Wl,-soname," + library, "-o", filepath.Join(dir, library),
	}, files, flags)
	_, err = runCompiler(dir, folder, "gcc", args)
	return err
}

// kernelMark marks kernels in preprocessed sources, instead of the macro KERNEL.
const kernelMark = "SOFTGPU_KERNEL"

// compileKernels returns the path of an object file with all kernels and a table of their names.
// The names come from preprocessed sources, because macros generate most of them.
func compileKernels(dir string, flags []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(kernelsIn(dir), "src", "*.cu"))
	if err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	includes := includesOf(files)
	includesFile := filepath.Join(dir, "list.cc")
	if err := os.WriteFile(includesFile, []byte(includes), 0o644); err != nil {
		return "", fmt.Errorf("writing the list of kernels: %w", err)
	}

	preprocessed, err := runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), []string{"-E", "-P", "-DKERNEL=" + kernelMark, includesFile}))
	if err != nil {
		return "", err
	}

	kernelsAndTable := filepath.Join(dir, "table.cc")
	source := includes + tableOf(preprocessed)
	if err := os.WriteFile(kernelsAndTable, []byte(source), 0o644); err != nil {
		return "", fmt.Errorf("writing the table of kernels: %w", err)
	}

	object := filepath.Join(dir, "kernels.o")
	_, err = runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), flags, []string{"-c", "-o", object, kernelsAndTable}))
	return object, err
}

func kernelFlags(dir string) []string {
	emulatedDevice := filepath.Join(dir, "src", "gpu")
	kernelHeaders := filepath.Join(kernelsIn(dir), "src")
	return []string{
		"-x", "c++", "-std=c++17", "-O2", "-g", "-fPIC", "-fno-exceptions", "-fno-rtti",
		"-fvisibility=hidden",
		"-w",                                 // no warnings, which builds for GPUs report
		"-ffp-contract=off",                  // no fused multiply-add, as on the device
		"-fno-math-errno",                    // Device functions such as sqrt do not set errno.
		"-fsanitize=alignment",               // Misaligned accesses fail, as on the device.
		"-fsanitize-undefined-trap-on-error", // A misaligned access kills the process.
		"-I" + emulatedDevice,                // replaces device.h of kernelHeaders
		"-I" + kernelHeaders,
	}
}

func includesOf(files []string) string {
	var b strings.Builder
	for _, file := range files {
		fmt.Fprintf(&b, "#include <%s>\n", filepath.Base(file))
	}

	return b.String()
}

// markedName matches the start of a definition, such as "SOFTGPU_KERNEL bulk_sum_f32_2(".
var markedName = regexp.MustCompile(`\b` + kernelMark + `\s+(\w+)\s*\(`)

// tableOf returns the C++ source of a table of all kernels in a preprocessed source.
func tableOf(preprocessed string) string {
	var b strings.Builder
	b.WriteString("#include <table.h>\nconst gpu_kernel gpu_kernels[] = {\n")
	kernels := markedName.FindAllStringSubmatch(preprocessed, -1)
	for _, kernel := range kernels {
		name := kernel[1]
		fmt.Fprintf(&b, "\tENTRY(%s),\n", name)
	}

	fmt.Fprintf(&b, "};\nconst size_t gpu_kernel_count = %d;\n", len(kernels))
	return b.String()
}

// runCompiler returns the standard output of a compiler. Errors say that it compiled subject.
// Temporary files are in tempDir, or in the default folder if tempDir is "".
func runCompiler(tempDir, subject, compiler string, args []string) (string, error) {
	command := exec.Command(compiler, args...)
	if tempDir != "" {
		// Removing tempDir also removes files of a killed compiler.
		command.Env = append(os.Environ(), "TMPDIR="+tempDir)
	}

	var stdout, stderr strings.Builder
	command.Stdout = &stdout
	command.Stderr = &stderr
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", subject, err, strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}
