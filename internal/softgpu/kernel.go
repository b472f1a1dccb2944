package softgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The software GPU finds a kernel by its name, so the kernels are compiled together with a table of
// their names. Macros generate most of the names. For example, "KERNEL bulk_sum_##type##_##ranks("
// becomes "KERNEL bulk_sum_f32_2(". The table is thus made in three steps:
//
//   - list.cc includes all sources of kernels.
//   - The preprocessor expands list.cc. It also replaces the word KERNEL by a mark, so that its
//     output contains "SOFTGPU_KERNEL bulk_sum_f32_2(".
//   - table.cc consists of list.cc and the table, which has an entry for each name after a mark.

// compileKernels compiles all kernels together with their table, and returns the path of the object
// file.
func compileKernels(dir string, flags []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(kernelsIn(dir), "src", "*.cu"))
	if err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	includes := includesOf(files)
	list := filepath.Join(dir, "list.cc")
	if err := os.WriteFile(list, []byte(includes), 0o644); err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	expanded, err := runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), []string{"-E", "-P", "-DKERNEL=" + kernelMark, list}))
	if err != nil {
		return "", err
	}

	table := filepath.Join(dir, "table.cc")
	if err := os.WriteFile(table, []byte(includes+tableOf(expanded)), 0o644); err != nil {
		return "", fmt.Errorf("writing the table of kernels: %w", err)
	}

	object := filepath.Join(dir, "kernels.o")
	_, err = runCompiler(dir, "kernels", "g++",
		slices.Concat(kernelFlags(dir), flags, []string{"-c", "-o", object, table}))
	return object, err
}

// kernelsIn returns the folder with the sources of symmem's kernels.
func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }

// kernelFlags returns the flags with which g++ compiles the kernels for the CPU.
func kernelFlags(dir string) []string {
	emulatingHeaders := filepath.Join(dir, "src", "gpu")
	kernelHeaders := filepath.Join(kernelsIn(dir), "src")
	return []string{
		"-x", "c++", "-std=c++17", "-O2", "-g", "-fPIC", "-fno-exceptions", "-fno-rtti",
		"-fvisibility=hidden",
		"-w",                                 // no warnings: builds for GPUs report them
		"-ffp-contract=off",                  // no fused multiply-add, as on the device
		"-fno-math-errno",                    // functions such as sqrt need not set errno
		"-fsanitize=alignment",               // as on the device, an unaligned access is an error
		"-fsanitize-undefined-trap-on-error", // that kills the process
		"-I" + emulatingHeaders,              // first, because they replace kernel headers
		"-I" + kernelHeaders,
	}
}

// includesOf returns a C++ source that includes files.
func includesOf(files []string) string {
	var b strings.Builder
	for _, file := range files {
		fmt.Fprintf(&b, "#include <%s>\n", filepath.Base(file))
	}

	return b.String()
}

// kernelMark replaces the word KERNEL in the output of the preprocessor.
const kernelMark = "SOFTGPU_KERNEL"

// kernelName matches a mark, a name and a parenthesis.
var kernelName = regexp.MustCompile(`\b` + kernelMark + `\s+(\w+)\s*\(`)

// tableOf returns the C++ source of the table. expanded is the output of the preprocessor.
func tableOf(expanded string) string {
	var b strings.Builder
	b.WriteString("#include <table.h>\nconst gpu_kernel gpu_kernels[] = {\n")
	found := kernelName.FindAllStringSubmatch(expanded, -1)
	for _, match := range found {
		fmt.Fprintf(&b, "\tENTRY(%s),\n", match[1])
	}

	fmt.Fprintf(&b, "};\nconst size_t gpu_kernel_count = %d;\n", len(found))
	return b.String()
}
