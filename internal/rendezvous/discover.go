package rendezvous

import (
	"errors"
	"fmt"
	"strconv"
)

// environment looks up variables and records them for error messages.
type environment struct {
	lookup    func(string) (string, bool)
	source    Source
	variables []Variable
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

func (e *environment) errorf(format string, args ...any) error {
	return &EnvironmentError{
		Source:    e.source,
		Variables: e.variables,
		Reason:    fmt.Sprintf(format, args...),
	}
}

func (e *environment) number(name string) (int, error) {
	value := e.value(name)
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, e.errorf("%s is not a number", name)
	}
	return n, nil
}

// launcherVariables names a launcher's variables for rank, size, local rank and local size. A
// launcher sets all four or none.
type launcherVariables struct {
	source Source
	names  [4]string
	advice string
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

// readRanks returns false if no variable is set, or if Slurm's variables must be used instead.
func (l *launcherVariables) readRanks(
	e *environment, isSlurmTask bool,
) (w World, isFound bool, err error) {
	count, localCount := 0, 0 // number of variables that are set, and of those for this machine
	for i, name := range l.names {
		if e.value(name) != "" {
			count++
			localCount += i / 2
		}
	}
	switch {
	case count == 0:
		return World{}, false, nil
	case l.source == SourceMPICH && isSlurmTask && localCount == 0:
		// srun's PMI sets only rank and size.
		return World{}, false, nil
	case count < len(l.names):
		return World{}, false, e.errorf("only some of the variables are set; %s", l.advice)
	}
	w, err = l.parseWorld(&environment{lookup: e.lookup, source: l.source})
	return w, true, err
}

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
	return w, readJobName(e, &w)
}

func readJobName(e *environment, w *World) (err error) {
	switch w.Source {
	case SourceTorchrun:
		w.RunID = e.value("TORCHELASTIC_RUN_ID")
		if e.value("TORCHELASTIC_RESTART_COUNT") != "" {
			w.Restart, err = e.number("TORCHELASTIC_RESTART_COUNT")
		}
	case SourceOpenMPI:
		if w.RunID = e.value("PMIX_NAMESPACE"); w.RunID == "" {
			w.RunID = e.value("OMPI_MCA_ess_base_jobid")
		}
	case SourceLaunch, SourceOptions, SourceMPICH, SourceSlurm, SourceOneProcess:
	}
	return err
}
