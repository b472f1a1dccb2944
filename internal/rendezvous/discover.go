package rendezvous

import (
	"errors"
	"fmt"
	"strconv"
)

// environment looks up variables and records them for error messages.
type environment struct {
	lookup    func(string) (string, bool) // like os.LookupEnv
	source    Source                      // of the world that is read, for error messages
	variables []Variable                  // looked up so far
}

// value returns the value of a variable. An empty variable counts as unset, because scripts often
// set variables to "".
func (e *environment) value(name string) string {
	value, _ := e.lookup(name)
	e.variables = append(e.variables, Variable{name, value})
	return value
}

// token is like value, but hides the value from error messages.
func (e *environment) token(name string) Token {
	value, _ := e.lookup(name)
	variable := Variable{Name: name}
	if value != "" {
		variable.Value = "(hidden)"
	}
	e.variables = append(e.variables, variable)
	return Token(value)
}

// errorf returns an EnvironmentError with the variables that were looked up so far.
func (e *environment) errorf(format string, args ...any) error {
	return &EnvironmentError{
		Source:    e.source,
		Variables: e.variables,
		Reason:    fmt.Sprintf(format, args...),
	}
}

// number returns the value of a variable, which must be a decimal number and not negative.
func (e *environment) number(name string) (int, error) {
	value := e.value(name)
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, e.errorf("%s is not a number", name)
	}
	return n, nil
}

// launcherVariables describes how a launcher passes ranks to processes. A launcher sets all four
// variables or none.
type launcherVariables struct {
	source Source
	names  [4]string // of the variables for rank, size, local rank and local size
	advice string    // for users if only some variables are set
}

var launchers = []launcherVariables{
	{
		source: SourceTorchrun,
		names:  [4]string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
		advice: "RANK and WORLD_SIZE alone may count machines, as Kubeflow's PyTorchJob sets " +
			"them: start the processes by torchrun or symmem launch",
	},
	{
		source: SourceOpenMPI,
		names: [4]string{
			"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
			"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
		},
		advice: "mpirun of Open MPI sets all four",
	},
	{
		source: SourceMPICH,
		names:  [4]string{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
		advice: "mpiexec of MPICH and of Intel MPI sets all four",
	},
}

// Discover determines this process's rank and the route to the store without communication. lookup
// is usually os.LookupEnv. The error is an EnvironmentError or describes an invalid option.
func Discover(lookup func(string) (string, bool), o Options) (World, error) {
	w, err := discoverRanks(lookup, o)
	if err != nil {
		return World{}, err
	}
	e := &environment{lookup: lookup, source: w.Source}
	if err := chooseRoute(e, o, &w); err != nil {
		return World{}, err
	}
	return w, nil
}

// discoverRanks returns this process's World without a route, from the options or the variables of
// a launcher. Without either, the World has one rank.
func discoverRanks(lookup func(string) (string, bool), o Options) (World, error) {
	if o.Size != 0 || o.Rank != 0 || o.LocalRank != 0 || o.LocalSize != 0 {
		return worldFromOptions(o)
	}
	slurmEnvironment := &environment{lookup: lookup, source: SourceSlurm}
	isSlurmTask := isInSlurmStep(slurmEnvironment)
	for i := range launchers {
		e := &environment{lookup: lookup, source: launchers[i].source}
		if w, isFound, err := launchers[i].readRanks(e, isSlurmTask); isFound || err != nil {
			return w, err
		}
	}
	if isSlurmTask {
		return worldFromSlurm(slurmEnvironment)
	}
	return World{Size: 1, LocalSize: 1, Source: SourceOneProcess}, nil
}

// worldFromOptions returns the World that the options describe. Without a local size, all ranks
// are on one machine.
func worldFromOptions(o Options) (World, error) {
	w := World{
		Rank: o.Rank, Size: o.Size, LocalRank: o.LocalRank, LocalSize: o.LocalSize,
		Source: SourceOptions,
	}
	if o.LocalSize == 0 {
		if o.LocalRank != 0 {
			return World{}, errors.New("finding this rank by options: the local " +
				"rank is set, but the local size is not set")
		}
		w.LocalRank, w.LocalSize = w.Rank, w.Size
	}
	if problem := w.describeProblem(); problem != "" {
		return World{}, fmt.Errorf("finding this rank by options: %s", problem)
	}
	return w, nil
}

// readRanks returns the World that the launcher's variables describe. isFound is false if none of
// them is set, or if Slurm's variables must be used instead.
func (l *launcherVariables) readRanks(
	e *environment, isSlurmTask bool,
) (w World, isFound bool, err error) {
	const firstLocal = 2      // index in l.names of the local rank
	count, localCount := 0, 0 // numbers of variables that are set: all, and only the local ones
	for i, name := range l.names {
		if e.value(name) == "" {
			continue
		}
		count++
		if i >= firstLocal {
			localCount++
		}
	}
	switch {
	case count == 0:
		return World{}, false, nil
	case l.source == SourceMPICH && isSlurmTask && localCount == 0:
		// srun sets PMI_RANK and PMI_SIZE too.
		return World{}, false, nil
	case count < len(l.names):
		return World{}, false, e.errorf("only some of the variables are set; %s", l.advice)
	}
	w, err = l.parseWorld(&environment{lookup: e.lookup, source: l.source})
	return w, true, err
}

// parseWorld returns the World that the launcher's variables describe, all of which must be set.
func (l *launcherVariables) parseWorld(e *environment) (World, error) {
	w := World{Source: l.source}
	for i, field := range [...]*int{&w.Rank, &w.Size, &w.LocalRank, &w.LocalSize} {
		n, err := e.number(l.names[i])
		if err != nil {
			return World{}, err
		}
		*field = n
	}
	if problem := w.describeProblem(); problem != "" {
		return World{}, e.errorf("%s", problem)
	}
	err := readJobName(e, &w)
	return w, err
}

// readJobName sets the RunID and Restart of w if its launcher has variables for them.
func readJobName(e *environment, w *World) (err error) {
	switch w.Source {
	case SourceTorchrun:
		w.RunID = e.value("TORCHELASTIC_RUN_ID")
		if e.value("TORCHELASTIC_RESTART_COUNT") != "" {
			w.Restart, err = e.number("TORCHELASTIC_RESTART_COUNT")
		}
	case SourceOpenMPI:
		w.RunID = e.value("PMIX_NAMESPACE")
		if w.RunID == "" {
			w.RunID = e.value("OMPI_MCA_ess_base_jobid")
		}
	case SourceLaunch, SourceOptions, SourceMPICH, SourceSlurm, SourceOneProcess:
	}
	return err
}
