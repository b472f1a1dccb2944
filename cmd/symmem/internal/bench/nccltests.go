package bench

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"symmem"
	"symmem/bench/report"
)

// NCCLTests writes rows in the format of nccl-tests, so that tools for nccl-tests can read them.
type NCCLTests struct {
	Writer         io.Writer
	operation      *Operation // operation of the current table
	busSum         float64    // sum of bus bandwidths
	busCount       int        // number of bus bandwidths
	wrong          float64    // number of wrong elements
	refusalReasons []string   // why calls did not take the requested path
}

// ncclNames contains the types whose names in nccl-tests differ from ours.
var ncclNames = map[symmem.DataType]string{
	symmem.Float64: "double", symmem.Float32: "float", symmem.Float16: "half",
	symmem.BFloat16: "bfloat16",
}

// TypeName returns the name of a type in nccl-tests.
func TypeName(t symmem.DataType) string {
	if name, ok := ncclNames[t]; ok {
		return name
	}
	return t.String()
}

const ncclHeader = `#
#%s out-of-place %s in-place
#       size         count      type   redop    root` +
	"     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong" + `
#        (B)    (elements)                          ` +
	"     (us)  (GB/s)  (GB/s)              (us)  (GB/s)  (GB/s)" + `
`

// WriteRow writes a row. Before the first row of an operation, it writes a header.
func (n *NCCLTests) WriteRow(o *CollectiveOptions, r *Row) error {
	var b bytes.Buffer
	if n.operation != r.Operation {
		if err := n.WriteFooter(); err != nil {
			return err
		}
		n.operation = r.Operation
		fmt.Fprintf(&b, "# %s\n"+ncclHeader, r.Operation.Name,
			fmt.Sprintf("%*s", 61, ""), fmt.Sprintf("%*s", 21, ""))
	}
	redop, root := "none", -1
	if r.Operation.kind.Reduces() {
		redop = o.ReduceOp.String()
	}
	if r.Operation.kind.HasRoot() {
		root = 0
	}
	fmt.Fprintf(&b, "%12d  %12d  %8s  %6s  %6d%s%s%s\n", r.Bytes, r.Count,
		TypeName(o.DataType), redop, root, n.columns(r, r.Results[0]), n.columns(r, r.Results[1]),
		n.pathComment(r))
	_, err := n.Writer.Write(b.Bytes())
	return err
}

// pathComment returns a comment that names the path if the calls did not take the requested one.
func (n *NCCLTests) pathComment(r *Row) string {
	var takenPaths [2]string
	for i, result := range r.Results {
		if result == nil || result.Params["refused"] == nil {
			continue
		}
		takenPaths[i] = fmt.Sprint(result.Params["took"])
		reason := fmt.Sprint(result.Params["refused"])
		if !slices.Contains(n.refusalReasons, reason) {
			n.refusalReasons = append(n.refusalReasons, reason)
		}
	}
	switch {
	case takenPaths == [2]string{}:
		return ""
	case takenPaths[0] == takenPaths[1] || r.Results[1] == nil:
		return "  # took " + takenPaths[0]
	case takenPaths[0] == "":
		return "  # took " + takenPaths[1] + " in place"
	case takenPaths[1] == "":
		return "  # took " + takenPaths[0] + " out of place"
	}
	return "  # took " + takenPaths[0] + ", in place " + takenPaths[1]
}

func (n *NCCLTests) columns(r *Row, result *report.Result) string {
	if result == nil {
		return fmt.Sprintf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A")
	}
	algorithmGBps, busGBps := r.bandwidths(result.Median)
	wrong := result.Figures["wrong"]
	n.busSum, n.wrong = n.busSum+busGBps, n.wrong+wrong
	n.busCount++
	return fmt.Sprintf("  %7s  %6s  %6s  %6.6g", formatWidth(result.Median/1e3, 7),
		formatWidth(algorithmGBps, 6), formatWidth(busGBps, 6), wrong)
}

// bandwidths returns what nccl-tests calls the algorithm bandwidth and the bus bandwidth, in GB/s.
func (r *Row) bandwidths(ns float64) (algorithmGBps, busGBps float64) {
	algorithmGBps = float64(r.Bytes) / max(ns, 1e-3)
	return algorithmGBps, algorithmGBps * r.Operation.busFactor(float64(r.Ranks))
}

// formatWidth formats a number with two decimals, or with fewer if they do not fit into width.
func formatWidth(v float64, width int) string {
	power := 0
	if v >= 1 {
		power = int(math.Log10(v)) + 1
	}
	decimals := min(max(width-1-power, 0), 2)
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// WriteFooter completes the current table. It does nothing if no row was written.
func (n *NCCLTests) WriteFooter() error {
	if n.operation == nil {
		return nil
	}
	verdict := "OK"
	if n.wrong > 0 {
		verdict = "FAILED"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b,
		"# Out of bounds values : %.6g %s\n# Avg bus bandwidth    : %.6g\n#\n",
		n.wrong, verdict, n.busSum/float64(max(n.busCount, 1)))
	for _, reason := range n.refusalReasons {
		fmt.Fprintf(&b, "# did not take the requested path: %s\n#\n", reason)
	}
	*n = NCCLTests{Writer: n.Writer}
	_, err := n.Writer.Write(b.Bytes())
	return err
}
