package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"symmem/internal/sys"
)

// pinName is a hidden command that binds the process to the processor of its rank, and then
// executes another command.
const pinName = "pin-rank"

func newPinCommand() *cobra.Command {
	return &cobra.Command{
		Use:    pinName + " -- command [argument ...]",
		Short:  "Bind to the processor of LOCAL_RANK and execute a command",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return exitWith(exitIncomplete, execPinned(args))
		},
	}
}

// execPinned binds this process to its rank's processor and executes the command. It returns only
// on failure.
func execPinned(args []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("finding the command: %w", err)
	}

	value := os.Getenv("LOCAL_RANK")
	rank, err := strconv.Atoi(value)
	if err != nil || rank < 0 {
		return fmt.Errorf("LOCAL_RANK is %q, which is not a rank", value)
	}

	// The thread that calls exec becomes the new process's thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	processors, err := sys.Affinity() // has at least one processor
	if err != nil {
		return err
	}

	processor := processors[rank%len(processors)]
	if err := sys.SetAffinity(processor); err != nil {
		return err
	}

	err = syscall.Exec(path, args, os.Environ()) // does not return on success
	return fmt.Errorf("starting %s: %w", path, err)
}
