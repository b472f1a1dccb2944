package nccl

// function is a function of libnccl, by its place in the table.
type function uint8

const (
	getVersion function = iota
	getErrorString
	getLastError
	getUniqueID
	commInitRankScalable
	commAbort
	commGetAsyncError
	commCount
	commCuDevice
	commUserRank
	commWindowRegister
	commWindowDeregister
	groupStart
	groupEnd
	allReduce
	broadcast
	reduce
	allGather
	reduceScatter
	alltoAll
	send
	recv
	functions
)

// table names the functions and the first version that has each. What is older than any NCCL
// that anybody still runs has version 0.
var table = [functions]struct {
	name  string
	first int
}{
	getVersion:           {"ncclGetVersion", 0},
	getErrorString:       {"ncclGetErrorString", 0},
	getLastError:         {"ncclGetLastError", 21304},
	getUniqueID:          {"ncclGetUniqueId", 0},
	commInitRankScalable: {"ncclCommInitRankScalable", 22304},
	commAbort:            {"ncclCommAbort", 0},
	commGetAsyncError:    {"ncclCommGetAsyncError", 0},
	commCount:            {"ncclCommCount", 0},
	commCuDevice:         {"ncclCommCuDevice", 0},
	commUserRank:         {"ncclCommUserRank", 0},
	commWindowRegister:   {"ncclCommWindowRegister", VersionWindows},
	commWindowDeregister: {"ncclCommWindowDeregister", VersionWindows},
	groupStart:           {"ncclGroupStart", 0},
	groupEnd:             {"ncclGroupEnd", 0},
	allReduce:            {"ncclAllReduce", 0},
	broadcast:            {"ncclBroadcast", 0},
	reduce:               {"ncclReduce", 0},
	allGather:            {"ncclAllGather", 0},
	reduceScatter:        {"ncclReduceScatter", 0},
	alltoAll:             {"ncclAlltoAll", 22803},
	send:                 {"ncclSend", 0},
	recv:                 {"ncclRecv", 0},
}
