package cuda

import (
	"runtime"

	"symmem/internal/dl"
)

// A graph describes work as nodes with dependencies. For example, the nodes A and B are kernels,
// and B depends on A, so that it runs after A. GraphInstantiate makes a GraphExec of the graph.
// Each GraphLaunch of the GraphExec runs A and then B.

// graphs calls the functions for graphs.
type graphs struct{ table }

// Graph is a CUDA graph (CUgraph).
type Graph uintptr

// Node is a graph node (CUgraphNode), which exists as long as the graph.
type Node uintptr

// GraphExec is a graph that can be launched (CUgraphExec).
type GraphExec uintptr

// GraphInstantiate makes a GraphExec of a graph. The graph can be destroyed before the GraphExec.
func (g *graphs) GraphInstantiate(graph Graph) (GraphExec, error) {
	const noFlags = 0
	return getValue[GraphExec](&g.table, graphInstantiate, uintptr(graph), noFlags)
}

// GraphLaunch queues a graph's work. Launches of one GraphExec never overlap.
func (g *graphs) GraphLaunch(exec GraphExec, stream Stream) error {
	return g.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy destroys a GraphExec. Queued launches still run.
func (g *graphs) GraphExecDestroy(exec GraphExec) error {
	return g.call(graphExecDestroy, uintptr(exec))
}

// GraphDestroy destroys a graph.
func (g *graphs) GraphDestroy(graph Graph) error { return g.call(graphDestroy, uintptr(graph)) }

// GraphAddEventRecord adds a node that records an event after the given nodes have run.
func (g *graphs) GraphAddEventRecord(graph Graph, nodes []Node, event Event) (Node, error) {
	node, err := getValue[Node](&g.table, graphAddEventRecord, uintptr(graph), addressOf(nodes),
		uintptr(len(nodes)), uintptr(event))
	runtime.KeepAlive(nodes)
	return node, err
}

// addressOf returns the address of the first node, or 0 if there is none. The caller must keep the
// slice alive while C code uses it, because the garbage collector ignores the address.
func addressOf(nodes []Node) uintptr {
	if len(nodes) == 0 {
		return 0
	}

	return dl.AddressOf(&nodes[0])
}

// GraphAddDependencies makes successors[i] depend on nodes[i], for each i.
func (g *graphs) GraphAddDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphAddDependencies, graphAddDependencies2, graph, nodes, successors)
}

// GraphRemoveDependencies removes the dependency of successors[i] on nodes[i], for each i.
func (g *graphs) GraphRemoveDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphRemoveDependencies, graphRemoveDependencies2, graph, nodes,
		successors)
}

// changeDependencies calls newFunction or, if the driver lacks it, oldFunction. newFunction has an
// additional parameter, the data of the edges. An edge is a dependency between two nodes.
func (g *graphs) changeDependencies(
	oldFunction, newFunction function, graph Graph, nodes, successors []Node,
) error {
	defer runtime.KeepAlive(nodes)
	defer runtime.KeepAlive(successors)
	n := uintptr(min(len(nodes), len(successors)))
	hasNew := g.symbols[newFunction] != 0
	if hasNew {
		const noEdgeData = 0
		return g.call(newFunction, uintptr(graph), addressOf(nodes), addressOf(successors),
			noEdgeData, n)
	}

	return g.call(oldFunction, uintptr(graph), addressOf(nodes), addressOf(successors), n)
}

// CallAfterGraph makes CUDA call end once, when nothing uses the graph any more. This is after the
// graph and its clones, GraphExecs and parent graphs have been destroyed, and all launches have
// ended. The caller can still be capturing the graph.
//
// end runs on a CUDA thread. It must not call CUDA or NCCL, must not wait for a thread that does,
// and must not panic. If CallAfterGraph returns an error, end is not called.
//
// Before CUDA 11.3, the error is a *MissingError.
func (g *graphs) CallAfterGraph(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		isMissing := g.symbols[f] == 0
		if isMissing {
			return &MissingError{Function: names[f], Path: g.library.Path()}
		}
	}

	work := NewHostFuncOnce(end)
	object, err := g.createUserObject(work)
	if err != nil {
		work.Release()
		return err
	}

	const moveReferences = 1 // CU_GRAPH_USER_OBJECT_MOVE: the graph takes over our reference
	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), oneReference,
		moveReferences)
	if err != nil {
		work.Release() // first, so that the destructor does not call end
		_ = g.call(userObjectRelease, uintptr(object), oneReference)
	}

	return err
}

// userObject has a reference count and a destructor (CUuserObject). CUDA calls the destructor when
// the last reference is gone.
type userObject uintptr

const oneReference = 1

// createUserObject returns a userObject with one reference. Its destructor calls work.
func (g *graphs) createUserObject(work HostFunc) (userObject, error) {
	const noDestructorSync = 1        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: CUDA does not wait for it
	cell := dl.NewCell(userObject(0)) // heap memory, to which CUDA writes the userObject
	err := g.call(userObjectCreate, cell.Address(), uintptr(work), hostCallback(), oneReference,
		noDestructorSync)
	return cell.Take(), err
}
