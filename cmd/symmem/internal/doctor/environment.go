package doctor

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Variable is a setting that can affect symmem, NCCL or CUDA: an environment variable or a line of
// NCCL's configuration files.
type Variable struct {
	Name string `json:"name"`
	// Value is the variable's value, or "(hidden)" if it is a secret.
	Value string `json:"value"`
	// File is the path of the configuration file, or "" for an environment variable.
	File string `json:"file,omitempty"`
}

// relevantPrefixes lists prefixes of the names of relevant environment variables.
var relevantPrefixes = []string{"NCCL_", "CUDA_", "SYMMEM_", "TORCH_", "TORCHELASTIC_", "PYTORCH_"}

// InspectVariables returns the relevant variables in environ, and those in NCCL's configuration
// files, sorted by name. environ has the format of os.Environ and takes precedence over the files.
func InspectVariables(environ []string) []Variable {
	variables := []Variable{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if isRelevant(name) {
			variables = append(variables, Variable{Name: name, Value: displayValue(name, value)})
		}
	}

	for _, file := range configFiles() {
		for _, v := range readConfigFile(file) {
			hasSameName := func(other Variable) bool { return other.Name == v.Name }
			if !slices.ContainsFunc(variables, hasSameName) {
				variables = append(variables, v)
			}
		}
	}

	slices.SortStableFunc(variables, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	return variables
}

func isRelevant(name string) bool {
	return slices.ContainsFunc(relevantPrefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// displayValue returns the value to report, which hides tokens.
func displayValue(name, value string) string {
	if strings.Contains(name, "TOKEN") && value != "" {
		return "(hidden)"
	}

	return value
}

// configFiles returns the paths of NCCL's configuration files in order of precedence, as in
// src/misc/param.cc of NCCL. The files need not exist.
func configFiles() []string {
	const systemFile = "/etc/nccl.conf"
	if userFile := os.Getenv("NCCL_CONF_FILE"); userFile != "" {
		return []string{userFile, systemFile}
	}

	home, err := os.UserHomeDir()
	if err != nil {
		return []string{systemFile}
	}

	return []string{filepath.Join(home, ".nccl.conf"), systemFile}
}

// readConfigFile returns the variables in NAME=VALUE lines of a file, which it parses as NCCL does.
// It returns nil if the file cannot be opened, and ignores the rest of a file that it cannot read.
func readConfigFile(path string) []Variable {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	var variables []Variable
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, hasValue := strings.Cut(lines.Text(), "=")
		isComment := strings.HasPrefix(name, "#")
		if hasValue && !isComment {
			variables = append(variables, Variable{
				Name: name, Value: displayValue(name, value), File: path,
			})
		}
	}

	return variables
}

// variableEffect describes an effect of a variable, which some or all of its values have.
type variableEffect struct {
	name   string   // name of the variable
	values []string // values with the effect, in any case; nil if all values have it
	text   string   // the effect, such as "hides every GPU"
	advice string   // how to avoid the effect, or "" if the effect is no reason to warn
}

const unsetAdvice = "unset it, unless this is intended"

var onlyZero = []string{"0"} // for variableEffect.values

// variableEffects lists the known effects. No value of a variable has more than one effect.
var variableEffects = []variableEffect{
	{
		name: "NCCL_WIN_ENABLE", values: onlyZero,
		text:   "switches windows off, so every collective takes the plain path",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_CUMEM_ENABLE", values: onlyZero,
		text:   "prevents NCCL from using virtual memory management, and thus windows",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_P2P_DISABLE", values: []string{"1"},
		text: "prevents GPUs from accessing each other's memory, " +
			"and most versions of NCCL from using window kernels",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_P2P_LEVEL", values: []string{"LOC", "0"},
		text: "prevents GPUs from accessing each other's memory, " +
			"and NCCL from using window kernels",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_HOSTID",
		text: "makes NCCL treat ranks with different values as ranks on different " +
			"machines, which have windows only if NCCL has a network that supports them",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_LOCAL_REGISTER", values: onlyZero,
		text:   "prevents NCCL 2.27 from creating windows without symmetric memory",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_LSA_TEAM_SIZE",
		text: "limits the ranks whose memory NCCL maps, and thus the groups " +
			"that have window kernels",
		advice: unsetAdvice,
	},
	{
		name:   "NCCL_SYM_KERNEL",
		text:   "allows only some window kernels, so calls that none of them supports fail",
		advice: unsetAdvice,
	},
	{
		name: "NCCL_RUNTIME_CONNECT", values: []string{"1"},
		text: "makes NCCL connect at the first collective, so a " +
			"launch may wait for ranks that have not yet reached it",
		advice: "unset it: symmem sets it to 0",
	},
	{
		name: "NCCL_COMM_BLOCKING", values: onlyZero,
		text:   "makes NCCL calls return before they have completed, which symmem does not support",
		advice: "unset it",
	},
	{
		name: "NCCL_DEBUG", values: []string{"VERSION", "WARN", "ABORT"},
		text:   "prevents NCCL from logging which kernels it uses, which --prove needs",
		advice: "unset it, or set it to INFO",
	},
	{
		name: "NCCL_IPC_USE_ABSTRACT_SOCKET", values: onlyZero,
		text:   "makes NCCL share memory through sockets in /tmp, which all ranks must see",
		advice: unsetAdvice,
	},
	{
		name: "SYMMEM_PATH", values: []string{"plain"},
		text:   "makes every collective take the plain path",
		advice: unsetAdvice,
	},
	{
		name: "CUDA_LAUNCH_BLOCKING", values: []string{"1"},
		text: "makes each launch wait for its completion, which " +
			"is slow and may block ranks forever",
		advice: "unset it",
	},
	{
		name: "CUDA_VISIBLE_DEVICES", values: []string{"", "-1", "NoDevFiles"},
		text:   "hides every GPU",
		advice: "unset it, or list GPUs",
	},
	{name: "NCCL_DEBUG_FILE", text: "names the file from which --prove and the trial read NCCL's log"},
	{name: "NCCL_DEBUG_SUBSYS", text: "must contain TUNING for --prove and the trial"},
	{name: "NCCL_ALGO", text: "does not affect window kernels"},
	{name: "NCCL_PROTO", text: "does not affect window kernels"},
	{
		name: "NCCL_NVLS_ENABLE", values: onlyZero,
		text: "prevents NCCL from using NVLink multicast, which symmem does not need",
	},
	{name: "SYMMEM_BACKEND", text: "selects the backend"},
	{name: "SYMMEM_TOKEN", text: "protects the store from other users"},
	{name: "SYMMEM_TUNING", text: "names the table from which paths are chosen"},
	{
		name: "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", values: []string{"1", "true"},
		text: "makes PyTorch register its own segments with its own communicators, not with symmem's",
	},
}

// matches reports whether a variable has the effect.
func (e *variableEffect) matches(v *Variable) bool {
	if e.name != v.Name {
		return false
	}

	if len(e.values) == 0 { // all values have the effect
		return true
	}

	isSetTo := func(value string) bool {
		return strings.EqualFold(value, strings.TrimSpace(v.Value))
	}
	return slices.ContainsFunc(e.values, isSetTo)
}

// judgeVariables adds a finding about each variable to s.
func judgeVariables(f *Facts, s *Section) {
	for i := range f.Variables {
		f.Variables[i].judge(f.RequestedBackend, s)
	}

	if len(s.Findings) == 0 {
		s.addOK("no variable of NCCL, CUDA, PyTorch or symmem is set")
	}
}

// judge adds a finding about the variable and its effect to s. If the host backend was requested,
// judge warns only about symmem's variables, because the others do not affect that backend.
func (v *Variable) judge(requestedBackend string, s *Section) {
	setting := fmt.Sprintf("%s=%s", v.Name, v.Value)
	if v.File != "" {
		setting += " (in " + v.File + ")"
	}

	index := slices.IndexFunc(variableEffects, func(e variableEffect) bool { return e.matches(v) })
	if index < 0 {
		s.addOK("%s", setting)
		return
	}

	effect := &variableEffects[index]
	affectsBackend := strings.HasPrefix(v.Name, "SYMMEM_") || requestedBackend != "host"
	switch {
	case effect.advice == "": // no reason to warn
		s.addOK("%s %s", setting, effect.text)
	case affectsBackend:
		s.add(Warn, effect.advice, "%s %s", setting, effect.text)
	default:
		s.addOK("%s", setting)
	}
}
