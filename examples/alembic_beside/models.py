"""The application's own table."""

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The application's models."""


class Ticket(Base):
    """A ticket that an agent has sold."""

    __tablename__ = "tickets"

    id: Mapped[int] = mapped_column(primary_key=True)
    thread_id: Mapped[str] = mapped_column(index=True)
    destination: Mapped[str]
