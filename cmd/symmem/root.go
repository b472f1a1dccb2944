package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const rootLong = `symmem keeps the buffers of collectives at the same place on all ranks. This
command checks that it does, starts ranks, and measures collectives.

Exit codes: 0 success; 1 a sum was wrong or ranks differ; 2 the command could not run or could not
finish; 128+n killed by signal n. When a command that measures or verifies is interrupted, it
reports its results so far. With --json, a command that could not run and has printed nothing else
prints {"error", "code"}.

These environment variables set defaults, which flags and the options of programs override:
SYMMEM_BACKEND, the backend; SYMMEM_PATH, the path of collectives; SYMMEM_TUNING, the table that
chooses the path.`

const rootExample = `  symmem verify                        # are sums right on this machine?
  symmem tune                          # which path is fastest here?
  symmem launch -n 4 -- python train.py   # start ranks, as torchrun does
  symmem completion bash               # completion for the shell`

// newRootCommand returns the command tree. run prints the commands' errors.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "symmem",
		Short:         "Symmetric memory for collectives",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = versionText(currentBuild())
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(
		newVerifyCommand(),
		newDoctorCommand(),
		newPreflightCommand(),
		newLaunchCommand(),
		newBenchCommand(),
		newTuneCommand(),
		newDiffCommand(),
		newReportCommand(),
		newStatusCommand(),
		newExportCommand(),
		newVersionCommand(),
		newPinCommand(),
		newManCommand(),
	)
	return root
}

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

// writeManual writes a manual page for each command. GenManTree reads SOURCE_DATE_EPOCH.
func writeManual(root *cobra.Command, directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("creating the directory of the manual pages: %w", err)
	}

	root.DisableAutoGenTag = true
	root.InitDefaultVersionFlag() // otherwise, the page lacks --version
	header := &doc.GenManHeader{
		Section: "1", Source: "symmem " + currentBuild().Version, Manual: "symmem",
	}
	if err := doc.GenManTree(root, header, directory); err != nil {
		return fmt.Errorf("writing the manual pages: %w", err)
	}

	return nil
}
