package chaos

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

var machinesFlag = flag.Int("machines", 1,
	"number of machines on which the ranks of a world on GPUs pretend to run")

const (
	machinesVariable = "SYMMEM_CHAOS_MACHINES"
	// hostVariable is the variable from which NCCL and symmem take the name of a rank's machine.
	hostVariable = "NCCL_HOSTID"
)

// restartOnMachine restarts this process with the name of the rank's machine in its environment.
// Setting the variable is not enough, because NCCL sees only variables that were set when the
// process started.
func restartOnMachine() error {
	machines, _ := strconv.Atoi(os.Getenv(machinesVariable))
	if machines <= 1 || os.Getenv(hostVariable) != "" {
		return nil
	}

	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}

	ranks, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return err
	}

	program, err := os.Executable()
	if err != nil {
		return err
	}

	host := fmt.Sprintf("%s=machine-%d", hostVariable, rank*machines/ranks)
	return syscall.Exec(program, os.Args, append(os.Environ(), host))
}
