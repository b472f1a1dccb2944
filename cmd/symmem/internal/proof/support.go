package proof

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// A communicator is NCCL's object for a group of ranks. A window is memory that all its ranks have
// registered. If a communicator cannot have windows, NCCL's log shows facts about the reason, but
// not the reason itself. In this example, ranks are on two machines (nodes):
//
//	h:1:2 [0] NCCL INFO GIN/Plugin: Failed to initialize any GIN plugin
//	h:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
//	h:1:2 [0] NCCL INFO symmetricSupport 0, cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 1
//
// The text after "INFO " is a message. Between machines, windows need GIN: network communication
// that kernels start. Here, NCCL lacks GIN because it has found no plug-in for it.

// WhyNoWindows returns why the last communicator in the log has no windows. It returns "" if the
// communicator has windows or the log does not say.
func (r *Recorder) WhyNoWindows() (string, error) {
	file, err := os.Open(r.file)
	if err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return whyNoWindows(file)
}

// whyNoWindows is WhyNoWindows for the contents of a log.
func whyNoWindows(log io.Reader) (string, error) {
	const maxLineBytes = 1 << 20
	var f windowFacts
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		line := lines.Text()
		if prefix := messagePrefix.FindStringIndex(line); prefix != nil {
			prefixEnd := prefix[1]
			f.add(line[prefixEnd:])
		}
	}

	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}

	return f.reason(), nil
}

// The messages of NCCL that contain facts.
var (
	messagePrefix = regexp.MustCompile(` NCCL (?:INFO|WARN) `) // precedes each message
	nodesMessage  = regexp.MustCompile(`^comm \S+ rank \d+ nRanks \d+ nNodes (\d+) `)
	// noWindowsMessage has the first form up to NCCL 2.30, and the second form in newer versions.
	noWindowsMessage = regexp.MustCompile(
		`^(?:Symmetric memory is not supported\. |symmetricSupport 0, )`)
	// noWindowsField matches a field of noWindowsMessage: a name and a value, as in "cuMemEnable 1".
	noWindowsField = regexp.MustCompile(`(\w+) (-?\d+)`)
)

// windowsPrefix begins a message about a communicator with windows, if it is not a
// noWindowsMessage. NCCL up to 2.30 logs no such message.
const windowsPrefix = "symmetricSupport "

// windowFacts holds the facts that a log contains about the last communicator.
type windowFacts struct {
	isMultiNode      bool              // whether the communicator has ranks on several machines
	fields           map[string]string // values by name; nil if there was no noWindowsMessage
	isPluginMissing  bool              // whether NCCL has found no usable plug-in for GIN
	isGDRCopyMissing bool              // whether GIN over sockets lacks the library GDRCopy
	skippedType      string            // the NCCL_GIN_TYPE that excludes a plug-in, or ""
}

// add adds the facts in a message. Facts about nodes and windows replace those of earlier
// communicators.
func (f *windowFacts) add(message string) {
	if groups := nodesMessage.FindStringSubmatch(message); groups != nil {
		nodeCount := groups[1]
		f.isMultiNode = nodeCount != "1"
	}

	switch {
	case noWindowsMessage.MatchString(message):
		f.fields = map[string]string{}
		for _, field := range noWindowsField.FindAllStringSubmatch(message, -1) {
			name, value := field[1], field[2]
			f.fields[name] = value
		}

	case strings.HasPrefix(message, windowsPrefix):
		f.fields = nil
	case strings.HasSuffix(message, "GIN/Plugin: Failed to initialize any GIN plugin"):
		f.isPluginMissing = true
	case strings.Contains(message, "RMA/Socket") && strings.Contains(message, "requires GDRCopy"):
		f.isGDRCopyMissing = true
	case strings.HasPrefix(message, "GIN/Plugin: Skipping plugin"):
		_, afterName, hasType := strings.Cut(message, "NCCL_GIN_TYPE=")
		if hasType {
			f.skippedType, _, _ = strings.Cut(afterName, " ")
		}
	}
}

// reason returns why the communicator has no windows. It returns "" if it has windows or the log
// contains no noWindowsMessage.
func (f *windowFacts) reason() string {
	if f.fields == nil {
		return ""
	}

	ginSupport := f.fields["globalGinSupport"]           // "" if the message lacks the field
	if value, exists := f.fields["ginSupport"]; exists { // in other versions of NCCL
		ginSupport = value
	}

	lacksGIN := ginSupport == "0"
	isGINReason := f.isMultiNode && lacksGIN
	switch {
	case f.fields["cuMemEnable"] == "0":
		return "cuMem is disabled (NCCL_CUMEM_ENABLE)"
	case isGINReason:
		return f.reasonForGIN()
	default:
		return "NCCL does not say why. Possible reasons: some GPUs of a machine cannot access each " +
			"other's memory (P2P), or NCCL_WIN_ENABLE is 0"
	}
}

// reasonForGIN returns why the communicator has no GIN.
func (f *windowFacts) reasonForGIN() string {
	switch {
	case f.isGDRCopyMissing:
		return "windows between machines need GIN, which over sockets needs GDRCopy (libgdrapi.so)"
	case f.skippedType != "":
		return "windows between machines need GIN, and NCCL_GIN_TYPE=" + f.skippedType +
			" excludes a plug-in that NCCL has found"
	case f.isPluginMissing:
		return "windows between machines need GIN, and NCCL found no GIN plug-in"
	case f.fields["cuMemGdrSupport"] == "0":
		return "windows between machines need GIN, which needs GPUDirect RDMA with memory of cuMemCreate"
	}

	return "windows between machines need GIN, but only some ranks have it, or ranks have different " +
		"types of it"
}
