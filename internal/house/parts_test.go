package house

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsRefuseUnknownParts runs each script that takes PARTS with a part that none has.
func TestScriptsRefuseUnknownParts(t *testing.T) {
	scripts, err := filepath.Glob("../../bench/gpu/*.sh")
	if err != nil {
		t.Fatal(err)
	}

	build := t.TempDir()
	if err := os.WriteFile(filepath.Join(build, "COMMIT"), []byte("none\n"), 0o644); err != nil {
		t.Fatal(err)
	}

	tried := 0
	for _, script := range scripts {
		text := read(t, strings.TrimPrefix(script, "../../"))
		if filepath.Base(script) == "machine.sh" || !strings.Contains(text, "PARTS") {
			continue
		}

		tried++
		c := exec.CommandContext(t.Context(), script)
		c.Env = append(os.Environ(), "PARTS=unheard", "BUILD="+build, "BACKEND=host")
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 ||
			!strings.Contains(string(out), "no part is named unheard; the parts are ") {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}

	if tried < 8 {
		t.Errorf("only %d scripts take PARTS", tried)
	}
}
