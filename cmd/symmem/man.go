package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the hidden command that writes a release's manual pages.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man directory",
		Short:  "Write the manual pages into a directory",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(cmd.Root(), args[0])
		},
	}
}

// writeManual writes a manual page for each command, dated with $SOURCE_DATE_EPOCH if that is set.
func writeManual(root *cobra.Command, directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("creating the directory of the manual pages: %w", err)
	}

	root.DisableAutoGenTag = true
	root.InitDefaultVersionFlag()
	header := &doc.GenManHeader{
		Section: "1", Source: "symmem " + currentBuild().Version, Manual: "symmem",
	}
	if err := doc.GenManTree(root, header, directory); err != nil {
		return fmt.Errorf("writing the manual pages: %w", err)
	}

	return nil
}
