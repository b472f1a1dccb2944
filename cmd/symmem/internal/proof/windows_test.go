package proof

import (
	"strings"
	"testing"
)

// TestWhyNoWindows formats messages as NCCL 2.29.2 to 2.32.3 do.
func TestWhyNoWindows(t *testing.T) {
	const (
		oneNode  = "comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0"
		twoNodes = "comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0"
		noPlugin = "GIN/Plugin: Failed to initialize any GIN plugin"
	)
	for _, c := range []struct {
		name string
		log  []string
		want string // "" if there must be no reason
	}{
		{"no message", []string{twoNodes}, ""},
		{"2.29.2", []string{
			twoNodes, "Symmetric memory is not supported. cuMemEnable 1, ginSupport 0, globalNicFused 0",
		}, "only some ranks"},
		{"2.30.3 without a plug-in", []string{
			noPlugin, twoNodes, "Symmetric memory is not supported. cuMemEnable 1, globalGinSupport 0, " +
				"globalNicFused 0 cuMemGdrSupport 1",
		}, "no GIN plug-in"},
		{"2.30.7 without GPUDirect RDMA", []string{
			twoNodes, "Symmetric memory is not supported. cuMemEnable 1, globalGinSupport 0, " +
				"cuMemGdrSupport 0",
		}, "GPUDirect RDMA"},
		{"2.30.7 with another type", []string{
			"GIN/Plugin: Skipping plugin GIN_PROXY index 2 type 2: NCCL_GIN_TYPE=3 requested", noPlugin,
			twoNodes, "Symmetric memory is not supported. cuMemEnable 1, globalGinSupport 0, " +
				"cuMemGdrSupport 1",
		}, "NCCL_GIN_TYPE=3 excludes"},
		{"2.32.3 over sockets", []string{
			"RMA/Socket : rma_socket requires GDRCopy; and GDR Copy is not available", noPlugin, twoNodes,
			"symmetricSupport 0, cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 1, " +
				"contiguousRanksPerHost 1, crossNicSupport 1",
		}, "GDRCopy"},
		{"2.32.3 with windows", []string{
			twoNodes, "symmetricSupport 0, cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 1, " +
				"contiguousRanksPerHost 1, crossNicSupport 1",
			"symmetricSupport 1, cuMemEnable 1, globalGinSupport 2, cuMemGdrSupport 1, " +
				"contiguousRanksPerHost 1, crossNicSupport 1",
		}, ""},
		{"no cuMem", []string{
			oneNode, "Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0, " +
				"cuMemGdrSupport 1",
		}, "NCCL_CUMEM_ENABLE"},
		{"one machine", []string{
			noPlugin, oneNode, "Symmetric memory is not supported. cuMemEnable 1, globalGinSupport 0, " +
				"cuMemGdrSupport 1",
		}, "P2P"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := "h:1:2 [0] NCCL INFO " + strings.Join(c.log, "\nh:1:2 [0] NCCL INFO ") + "\n"
			got, err := whyNoWindows(strings.NewReader(log))
			if err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("whyNoWindows = %q, %v; want a reason that contains %q", got, err, c.want)
			}
		})
	}
}
