package rendezvous

import (
	"errors"
	"fmt"
	"strconv"
)

// A launcher passes a rank to each process of a job in environment variables. For example, if
// torchrun starts 2 processes on each of 2 machines, the last one gets RANK=3, WORLD_SIZE=4,
// LOCAL_RANK=1 (among the ranks of its machine) and LOCAL_WORLD_SIZE=2.

// Discover determines this process's rank and the route to the job's store, from options and
// environment variables. lookup is usually os.LookupEnv. The error is an EnvironmentError or
// describes an invalid option.
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

// environment looks up environment variables and records them for error messages.
type environment struct {
	lookup    func(string) (string, bool) // like os.LookupEnv
	source    Source                      // launcher that sets the variables, for error messages
	variables []Variable                  // looked up so far
}

// value returns the value of a variable. It does not distinguish an empty variable from an unset
// one, because scripts often set variables to "".
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

func (e *environment) errorf(format string, args ...any) error {
	return &EnvironmentError{
		Source:    e.source,
		Variables: e.variables,
		Reason:    fmt.Sprintf(format, args...),
	}
}

// number returns the value of a variable, which must be a non-negative decimal number.
func (e *environment) number(name string) (int, error) {
	value := e.value(name)
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, e.errorf("%s is not a number", name)
	}

	return n, nil
}

type launcherVariables struct {
	source Source
	names  [4]string // for rank, size, local rank and local size, in this order
	advice string    // added to the error message if only some variables are set
}

// Discover tries the launchers in this order.
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

// discoverRanks returns this process's World without a route. Options take precedence over the
// variables of a launcher. Without either, the World has a single rank.
func discoverRanks(lookup func(string) (string, bool), o Options) (World, error) {
	hasRank := o.Rank != 0 || o.Size != 0
	hasLocalRank := o.LocalRank != 0 || o.LocalSize != 0
	if hasRank || hasLocalRank {
		return worldFromOptions(o)
	}

	slurmEnvironment := &environment{lookup: lookup, source: SourceSlurm}
	isSlurmTask := isInSlurmStep(slurmEnvironment)
	for i := range launchers {
		launcher := &launchers[i]
		e := &environment{lookup: lookup, source: launcher.source}
		w, isFound, err := launcher.readRanks(e, isSlurmTask)
		if isFound || err != nil {
			return w, err
		}
	}

	// Slurm comes last, because a task of Slurm may itself be a launcher such as torchrun.
	if isSlurmTask {
		return worldFromSlurm(slurmEnvironment)
	}

	return World{Size: 1, LocalSize: 1, Source: SourceOneProcess}, nil
}

// worldFromOptions assumes that all ranks are on one machine if the local size is not set.
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

		w.LocalRank = w.Rank
		w.LocalSize = w.Size
	}

	if problem := w.describeProblem(); problem != "" {
		return World{}, fmt.Errorf("finding this rank by options: %s", problem)
	}

	return w, nil
}

// readRanks returns the World that the launcher's variables describe. isFound is false if the
// launcher has not set any of them.
func (l *launcherVariables) readRanks(
	e *environment, isSlurmTask bool,
) (w World, isFound bool, err error) {
	setCount, isLocalSet := l.countSet(e)
	if setCount == 0 {
		return World{}, false, nil
	}

	// Slurm may also set PMI_RANK and PMI_SIZE, but not MPICH's local rank and size.
	isSetBySlurm := l.source == SourceMPICH && isSlurmTask && !isLocalSet
	if isSetBySlurm {
		return World{}, false, nil
	}

	if setCount < len(l.names) {
		return World{}, false, e.errorf("only some of the variables are set; %s", l.advice)
	}

	// countSet has recorded the variables in e. A new environment avoids duplicates in errors.
	w, err = l.parseWorld(&environment{lookup: e.lookup, source: l.source})
	return w, true, err
}

func (l *launcherVariables) countSet(e *environment) (setCount int, isLocalSet bool) {
	const firstLocalIndex = 2 // index of the local rank in l.names
	for i, name := range l.names {
		if e.value(name) == "" {
			continue
		}

		setCount++
		if i >= firstLocalIndex {
			isLocalSet = true
		}
	}

	return setCount, isLocalSet
}

// parseWorld requires that all of the launcher's variables are set.
func (l *launcherVariables) parseWorld(e *environment) (World, error) {
	w := World{Source: l.source}
	fields := [...]*int{&w.Rank, &w.Size, &w.LocalRank, &w.LocalSize} // in the order of l.names
	for i, field := range fields {
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

// readJobName sets RunID and Restart if the launcher has variables for them.
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
		// MPICH has no such variables. The other sources do not occur in the list of launchers.
	}

	return err
}
