package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestCommandsHaveManualPages(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "man1")
	if code := run(t.Context(), []string{"man", folder}, nil, os.Stdout, os.Stderr); code != exitOK {
		t.Fatalf("exit code %d, want 0", code)
	}

	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Error(err)
			return
		}

		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(string(page), "--"+f.Name) {
				t.Errorf("%s does not describe --%s", name, f.Name)
			}
		})
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				visit(sub)
			}
		}
	}
	visit(newRootCommand())
}
