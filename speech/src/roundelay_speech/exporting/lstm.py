"""An LSTM that can be exported for any number of frames: the steps of a torch.nn.LSTM as a scan over time.

Legend: T frames, N sequences, I inputs, H cells, O outputs (H, or those of a projection).
"""

from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

State = tuple[Tensor, Tensor]


class ScannedLstm(nn.Module):
    """Computes what `lstm`, of one layer and one direction, computes, up to rounding."""

    bias: Tensor
    into: Tensor
    back: Tensor
    projection: Tensor | None

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.batch_first, self.cells = lstm.batch_first, lstm.hidden_size
        self.outputs = lstm.proj_size or lstm.hidden_size
        weights = {name: weight.detach() for name, weight in lstm.named_parameters()}
        self.register_buffer("bias", weights["bias_ih_l0"] + weights["bias_hh_l0"])
        self.register_buffer("into", weights["weight_ih_l0"])
        self.register_buffer("back", weights["weight_hh_l0"].T.contiguous())
        self.register_buffer("projection", weights["weight_hr_l0"].T.contiguous() if lstm.proj_size else None)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Map (T, N, I), or (N, T, I) if it is `batch_first`, to (T, N, O) and the last state, as torch.nn.LSTM
        does."""
        if self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            hidden, cells = x.new_zeros(x.shape[1], self.outputs), x.new_zeros(x.shape[1], self.cells)
        else:
            hidden, cells = state[0][0], state[1][0]
        gates = nn.functional.linear(x, self.into, self.bias)

        def step(before: list[Tensor], gate: Tensor) -> tuple[list[Tensor], Tensor]:
            hidden, cells = before
            enter, forget, candidate, leave = (gate + hidden @ self.back).chunk(4, -1)
            cells = forget.sigmoid() * cells + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cells.tanh()
            if self.projection is not None:
                hidden = hidden @ self.projection
            return [hidden, cells], hidden.clone()

        (hidden, cells), outputs = scan(step, [hidden, cells], gates, dim=0)
        return (outputs.transpose(0, 1) if self.batch_first else outputs), (hidden[None], cells[None])


def with_scanned_lstms(network: nn.Module) -> nn.Module:
    """Return the network, changed: each LSTM in it is one that can be exported."""
    for module in [*network.modules()]:
        for name, part in [*module.named_children()]:
            if isinstance(part, nn.LSTM):
                setattr(module, name, ScannedLstm(part))
    return network
