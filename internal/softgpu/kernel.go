package softgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// compileKernels compiles all kernels, together with a table that maps names to kernels. It returns
// the path of the object file.
//
// Macros generate most names: "KERNEL bulk_sum_##type##_##ranks(" becomes "KERNEL bulk_sum_f32_2(".
// Therefore, compileKernels finds the names in the output of the preprocessor.
func compileKernels(dir string, flags []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(kernelsIn(dir), "src", "*.cu"))
	if err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	includes := includesOf(files)
	allKernels := filepath.Join(dir, "list.cc")
	if err := os.WriteFile(allKernels, []byte(includes), 0o644); err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	preprocessed, err := runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), []string{"-E", "-P", "-DKERNEL=" + kernelMark, allKernels}))
	if err != nil {
		return "", err
	}

	table := filepath.Join(dir, "table.cc")
	if err := os.WriteFile(table, []byte(includes+tableOf(preprocessed)), 0o644); err != nil {
		return "", fmt.Errorf("writing the table of kernels: %w", err)
	}

	object := filepath.Join(dir, "kernels.o")
	_, err = runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), flags, []string{"-c", "-o", object, table}))
	return object, err
}

func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }

func kernelFlags(dir string) []string {
	emulatedDevice := filepath.Join(dir, "src", "gpu")
	kernelHeaders := filepath.Join(kernelsIn(dir), "src")
	return []string{
		"-x", "c++", "-std=c++17", "-O2", "-g", "-fPIC", "-fno-exceptions", "-fno-rtti",
		"-fvisibility=hidden",
		"-w",                                 // Builds for real GPUs report warnings.
		"-ffp-contract=off",                  // no fused multiply-add, as on the device
		"-fno-math-errno",                    // Device functions such as sqrt do not set errno.
		"-fsanitize=alignment",               // Misaligned accesses fail, as on the device.
		"-fsanitize-undefined-trap-on-error", // A misaligned access kills the process.
		"-I" + emulatedDevice,                // first: it replaces headers of the same name
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

// kernelMark precedes the name of each kernel in preprocessed sources.
const kernelMark = "SOFTGPU_KERNEL"

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
