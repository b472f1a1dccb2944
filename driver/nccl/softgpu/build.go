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

// Build compiles the software driver, with the kernels of package kernels, and the software NCCL
// into dir, which is made if need be, and returns the paths of the two libraries. It needs gcc and
// g++. The sources are left in dir beside them.
//
// The two belong together: the second finds the first by its soname, so a process must load this
// cuda, by any path, and no other, before nccl.
func Build(dir string) (cuda, nccl string, err error) {
	return build(dir)
}

// build compiles with more flags, such as those of a sanitizer.
func build(dir string, flags ...string) (cuda, nccl string, err error) {
	for to, from := range map[string]embed.FS{dir: sources, kernelsIn(dir): kernels.Sources} {
		if err := unpack(to, from); err != nil {
			return "", "", fmt.Errorf("unpacking the software GPU: %w", err)
		}
	}
	cuda, nccl = filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libnccl.so.2")
	object, err := compileKernels(dir, flags)
	if err != nil {
		return "", "", err
	}
	if err := compile(dir, "cuda", cuda, append([]string{object}, flags...)); err != nil {
		return "", "", err
	}
	needs := []string{"-L" + dir, "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"}
	if err := compile(dir, "nccl", nccl, append(needs, flags...)); err != nil {
		return "", "", err
	}
	return cuda, nccl, nil
}

// unpack writes embedded sources below dir.
func unpack(dir string, from embed.FS) error {
	return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := from.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	})
}

// compile makes one library of a folder of sources. The flags that name libraries come last.
func compile(dir, folder, out string, flags []string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", folder, "*.c"))
	if err != nil {
		return fmt.Errorf("listing the sources of %s: %w", folder, err)
	}
	args := slices.Concat([]string{
		"-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden",
		"-Wall", "-Wextra", "-Werror", "-Wl,-soname," + filepath.Base(out), "-o", out,
	}, files, flags)
	_, err = run(folder, "gcc", args)
	return err
}

// run runs a compiler over a part, and returns what it has written.
func run(part, compiler string, args []string) (string, error) {
	c := exec.Command(compiler, args...)
	var text, complaints strings.Builder
	c.Stdout, c.Stderr = &text, &complaints
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("compiling %s: %w\n%s", part, err, strings.TrimSpace(complaints.String()))
	}
	return text.String(), nil
}
