package softgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func kernelsIn(dir string) string { return filepath.Join(dir, "kernels") }

// The emulating header takes precedence over the kernels' header of the same name. As on the
// device, multiply-add is not contracted, and unaligned accesses kill the process. Warnings are
// disabled, because builds for GPUs report them.
func kernelFlags(dir string) []string {
	return []string{
		"-x", "c++", "-std=c++17", "-O2", "-g", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti",
		"-fvisibility=hidden",
		"-ffp-contract=off", "-fno-math-errno",
		"-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",
		"-I" + filepath.Join(dir, "src", "gpu"), "-I" + filepath.Join(kernelsIn(dir), "src"),
	}
}

// compileKernels compiles all kernels together with a table of them, and returns the path of the
// object file.
func compileKernels(dir string, flags []string) (string, error) {
	files, err := filepath.Glob(filepath.Join(kernelsIn(dir), "src", "*.cu"))
	if err != nil {
		return "", fmt.Errorf("listing the kernels: %w", err)
	}

	includes := includes(files)
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

func includes(files []string) string {
	var b strings.Builder
	for _, file := range files {
		fmt.Fprintf(&b, "#include <%s>\n", filepath.Base(file))
	}

	return b.String()
}

// kernelMark precedes each kernel in the output of the preprocessor, because macros generate the
// kernels' names.
const kernelMark = "SOFTGPU_KERNEL"

var kernelName = regexp.MustCompile(`\b` + kernelMark + `\s+(\w+)\s*\(`)

// tableOf returns the C++ source of a table of the kernels in preprocessed sources.
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
