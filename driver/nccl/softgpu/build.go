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
)

//go:embed src
var sources embed.FS

// Build compiles the software driver and the software NCCL into dir, which is made if need be, and
// returns the paths of the two libraries. It needs gcc. The sources are left in dir beside them.
//
// The two belong together: the second finds the first by its soname, so a process must load this
// cuda, by any path, and no other, before nccl.
func Build(dir string) (cuda, nccl string, err error) {
	return build(dir)
}

// build compiles with more flags, such as those of a sanitizer.
func build(dir string, flags ...string) (cuda, nccl string, err error) {
	if err := unpack(dir); err != nil {
		return "", "", fmt.Errorf("unpacking the software GPU: %w", err)
	}
	cuda, nccl = filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libnccl.so.2")
	if err := compile(dir, "cuda", cuda, flags); err != nil {
		return "", "", err
	}
	needs := []string{"-L" + dir, "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"}
	if err := compile(dir, "nccl", nccl, append(needs, flags...)); err != nil {
		return "", "", err
	}
	return cuda, nccl, nil
}

// unpack writes the embedded sources below dir.
func unpack(dir string) error {
	return fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := sources.ReadFile(name)
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
	text, err := exec.Command("gcc", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", folder, err, strings.TrimSpace(string(text)))
	}
	return nil
}
